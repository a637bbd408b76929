"""Messages to webhooks: written together with the event they are about, signed as Standard Webhooks describes
it, and sent by any process until they are delivered or given up.

Questions to verifiers are signed, claimed and sent the same way.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Generic, NamedTuple, Self, TypeVar
from uuid import UUID

import httpx
import msgspec
import structlog
from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AppError, ConflictError, HostError, NotFoundError, first_line
from app.base.loop import Loop
from app.base.processes import new_owner
from app.base.text import visible_value
from app.base.untrusted_http import BodyError, read_body
from app.base.values import Json
from app.db import tables
from app.db.database import TRANSIENT, Sessions, keys_of
from app.db.lease import DueQueue, new_claim
from app.db.queries import Page, from_now, read_page
from app.db.tables import DeliveryState, Due
from app.projects.settings import ProjectSettings, WebhookEvent
from app.projects.webhook_signing import signed_headers, signing_key

_delivery = tables.WebhookDelivery
_PRUNED_AT_ONCE = 1_000

QUEUE = DueQueue(_delivery, _delivery.state == DeliveryState.PENDING, "claim a webhook's message")
log = structlog.get_logger(__name__)
_GRACE = 20.0  # seconds of the lease beyond the time limit of a request
D = TypeVar("D", bound=Due)
_MINUTE, _HOUR = 60.0, 3600.0
_DAY = 24 * _HOUR


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one attempt. Without an error the message was delivered."""

    status: int | None = None
    error: str | None = None
    final: bool = False  # sending it again is pointless


async def enqueue(
    session: AsyncSession,
    project_id: UUID,
    task_id: UUID | None,
    event: WebhookEvent,
    data: dict[str, Json],
    *,
    release_id: UUID | None = None,
) -> None:
    """Store a message if the project's webhook wants the event. It is sent once this transaction is committed.

    The event is one of a task or of a release.
    """
    query = select(tables.Project.name, tables.Project.settings).where(tables.Project.id == project_id)
    project = (await session.execute(query)).one()
    webhook = msgspec.convert(project.settings, ProjectSettings).webhook
    if webhook is None or event not in webhook.events:
        return
    about = {"task_id": task_id, "release_id": release_id}
    named = {name: str(value) for name, value in about.items() if value is not None}
    shown = {"project": project.name, **named, **data}
    message = {"type": event, "timestamp": datetime.now(UTC).isoformat(), "data": visible_value(shown)}
    body = msgspec.json.encode(message).decode()
    session.add(_delivery(project_id=project_id, event=event, body=body, **about))
    await session.flush()


async def target(session: AsyncSession, project_id: UUID) -> tuple[str, bytes] | None:
    """Where the messages of a project go, and the key that signs them; None if it has no webhook any more.

    Raises SettingError if its secret cannot be decrypted here.
    """
    project = tables.Project
    query = select(project.settings, project.webhook_secret).where(project.id == project_id)
    row = (await session.execute(query)).one_or_none()
    webhook = msgspec.convert(row.settings, ProjectSettings).webhook if row else None
    if row is None or webhook is None or row.webhook_secret is None:
        return None
    return webhook.url, signing_key(keys_of(session).decrypt(row.webhook_secret))


async def record(
    session: AsyncSession, row: tables.WebhookDelivery, result: DeliveryResult, retry_in: float | None
) -> bool:
    """Record an attempt: delivered, to be repeated in some seconds, or failed. False, and nothing is written: the
    message was claimed again."""
    owner, mine = row.owner or "", QUEUE.same(row)
    values = {"status": result.status, "error": result.error}
    if result.error is None:
        change = QUEUE.finish(owner, mine, state=DeliveryState.DELIVERED, **values)
    elif result.final or retry_in is None:
        change = QUEUE.finish(owner, mine, state=DeliveryState.FAILED, **values)
    else:
        change = QUEUE.hand_back(owner, mine, next_at=from_now(retry_in), **values)
    return await session.scalar(change.returning(_delivery.id)) is not None


async def prune(session: AsyncSession, keep_seconds: float) -> bool:
    """Delete some messages that were delivered or given up longer ago. Returns whether there may be more."""
    limit = select(from_now(-keep_seconds)).scalar_subquery()  # of which the index is used
    old = select(_delivery.id).where(_delivery.finished_at < limit).limit(_PRUNED_AT_ONCE)
    which = _delivery.id.in_(old.with_for_update(skip_locked=True))
    deleted = await session.scalars(delete(_delivery).where(which).returning(_delivery.id))
    return len(deleted.all()) == _PRUNED_AT_ONCE


async def get(session: AsyncSession, delivery_id: UUID, project_id: UUID | None = None) -> tables.WebhookDelivery:
    """Raises NotFoundError also for one of another project than the one given."""
    row = await session.get(_delivery, delivery_id, populate_existing=True)
    if row is None or project_id not in (None, row.project_id):
        raise NotFoundError(f"no delivery has the id {delivery_id}; GET /v1/webhooks/deliveries lists them")
    return row


async def page(
    session: AsyncSession,
    project_id: UUID | None,
    state: DeliveryState | None,
    *,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[tables.WebhookDelivery]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_delivery)
    if project_id is not None:
        query = query.where(_delivery.project_id == project_id)
    if state is not None:
        query = query.where(_delivery.state == state)
    return await read_page(session, query, _delivery, cursor, limit)


async def resend(session: AsyncSession, delivery_id: UUID) -> tables.WebhookDelivery:
    """Send a message again, with all attempts anew. Raises ConflictError if it has yet to be sent."""
    again = (
        update(_delivery)
        .where(_delivery.id == delivery_id, _delivery.state != DeliveryState.PENDING)
        .values(state=DeliveryState.PENDING, attempt=0, next_at=func.clock_timestamp(), finished_at=None)
    )
    row: tables.WebhookDelivery | None = await session.scalar(
        again.returning(_delivery).execution_options(populate_existing=True)
    )
    if row is None:
        raise ConflictError(f"delivery {delivery_id} is pending already: it will be sent")
    return row


class SignedPost(NamedTuple):
    """A message, where it goes, and the key that signs it."""

    url: str
    key: bytes
    id: str
    body: bytes


class PostAnswer(NamedTuple):
    """A response. The body is b"" if none was wanted, or the status is not 2xx."""

    status: int
    body: bytes


class PostError(Exception):
    """There is no response. The message is for the project."""


class PostTimeoutError(PostError):
    """There is none in time."""


async def post(client: httpx.AsyncClient, message: SignedPost, *, seconds: float, limit: int = 0) -> PostAnswer:
    """The response, within so many seconds in all. Redirects are not followed, and the body is read up to `limit`
    bytes; 0 leaves it unread.

    Raises PostError.
    """
    headers = signed_headers(message.key, message.id, int(time.time()), message.body)
    headers |= {"Content-Type": "application/json", "User-Agent": "sage-server"}
    extensions = {"timeout": httpx.Timeout(seconds).as_dict()}
    try:
        async with asyncio.timeout(seconds):
            request = httpx.Request(
                "POST", message.url, headers=headers, content=message.body, extensions=extensions
            )
            response = await client.send(request, stream=True, follow_redirects=False)
            try:
                wanted = limit and response.is_success
                return PostAnswer(response.status_code, await read_body(response, limit) if wanted else b"")
            finally:
                await response.aclose()
    except (TimeoutError, httpx.TimeoutException) as error:
        raise PostTimeoutError(f"no answer within {seconds:g} seconds") from error
    except HostError as error:
        raise PostError(error.message) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last of a name such as `xn--`
        raise PostError(f"it cannot be reached: {first_line(error)}") from error
    except BodyError as error:
        raise PostError(f"the answer {error}") from error


def status_problem(status: int) -> str | None:
    """Why a status is no success; None for 2xx."""
    if 200 <= status < 300:
        return None
    reason = "it redirects, which is not followed" if 300 <= status < 400 else "it answered with an error"
    return f"{reason}: status {status}"


class SendLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and intervals of a sender."""

    concurrency: int = 16
    per_project: int = 2  # in all processes, so that a slow receiver delays its own messages only
    timeout: float = 10.0
    poll_seconds: float = 1.0
    delays: Sequence[float] = ()
    """Seconds before each further attempt, varied by a fifth; after the last one it is given up."""


class ClaimedMessages(Generic[D]):
    """Claims and sends while it is entered. Leaving hands unsent messages back."""

    def __init__(
        self,
        name: str,
        sessions: Sessions,
        queue: DueQueue[D],
        send: Callable[[D], Coroutine[None, None, None]],
        limits: SendLimits,
    ) -> None:
        """`name` is of the loop: "send webhooks"."""
        self.owner = new_owner()
        self._sessions = sessions
        self._queue = queue
        self._send = send
        self._limits = limits
        self._under_way: set[asyncio.Task[None]] = set()
        self._loop = Loop(name, self._claim, limits.poll_seconds, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        for work in self._under_way:
            work.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        try:
            async with self._sessions.begin() as session:
                await self._queue.hand_back_unsent(session, self.owner)
        except TRANSIENT as error:
            log.warning("messages wait until their leases expire", cause=first_line(error))

    def delay_after(self, attempt: int) -> float | None:
        """Seconds until the next attempt, varied by a fifth; None after the last one."""
        if attempt > len(self._limits.delays):
            return None
        return self._limits.delays[attempt - 1] * random.uniform(0.8, 1.2)

    async def _claim(self) -> float | None:
        """Return 0 while there may be more to send."""
        if len(self._under_way) >= self._limits.concurrency:
            return None
        lease, per_project = self._limits.timeout + _GRACE, self._limits.per_project
        async with self._sessions.begin() as session:
            row = await self._queue.claim_due(session, new_claim(self.owner), lease, per_project=per_project)
        if row is None:
            return None
        work = asyncio.create_task(self._send(row))
        self._under_way.add(work)
        work.add_done_callback(self._drop)
        return 0

    def _drop(self, work: asyncio.Task[None]) -> None:
        self._under_way.discard(work)
        self._loop.wake()
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("a message is sent again once its lease expires", exc_info=error)


_NO_TARGET = DeliveryResult(error="the project has no webhook any more", final=True)


class WebhookOptions(SendLimits, frozen=True, kw_only=True):
    """Limits and intervals of the sender."""

    delays: Sequence[float] = (5, _MINUTE, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 6 * _HOUR, 14 * _HOUR)
    keep_seconds: float = 30 * _DAY  # after it was delivered or given up
    prune_seconds: float = _HOUR  # between two looks for old messages


class WebhookSender:
    """Sends, and deletes old messages, while it is entered. Leaving hands unsent messages back.

    Of an answer only the status is read.
    """

    def __init__(
        self,
        sessions: Sessions,
        client: httpx.AsyncClient,
        options: WebhookOptions = WebhookOptions(),  # noqa: B008  frozen
    ) -> None:
        self._sessions = sessions
        self._client = client
        self._options = options
        self._messages = ClaimedMessages("send webhooks", sessions, QUEUE, self._deliver, options)
        self._pruning = Loop("prune webhooks", self._prune, options.prune_seconds, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        await self._messages.__aenter__()
        self._pruning.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pruning.stop()
        await self._messages.__aexit__()

    async def _prune(self) -> float | None:
        async with self._sessions.begin() as session:
            more = await prune(session, self._options.keep_seconds)
        return 0 if more else None

    async def _deliver(self, row: tables.WebhookDelivery) -> None:
        try:
            async with self._sessions() as session:
                if not await QUEUE.is_claimed(session, row):  # this process has stalled
                    return
                found = await target(session, row.project_id)
            result = _NO_TARGET if found is None else await self._send(row, *found)
        except (AppError, PostError) as error:  # the first: the secret cannot be decrypted here
            result = DeliveryResult(error=str(error))
        retry_in = self._messages.delay_after(row.attempt)
        async with self._sessions.begin() as session:
            recorded = await record(session, row, result, retry_in)
        if not recorded:
            log.warning("a message to a webhook was claimed again, this result is dropped", delivery=str(row.id))
        elif result.error is not None:
            about = {"delivery": str(row.id), "attempt": row.attempt, "cause": result.error}
            log.warning("a message to a webhook was not delivered", **about)

    async def _send(self, row: tables.WebhookDelivery, url: str, key: bytes) -> DeliveryResult:
        message = SignedPost(url, key, f"msg_{row.id.hex}", row.body.encode())
        status, _ = await post(self._client, message, seconds=self._options.timeout)
        return DeliveryResult(status=status, error=status_problem(status), final=status == HTTPStatus.GONE)
