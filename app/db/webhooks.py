"""Messages to webhooks: written together with the event they are about, and sent by any process."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.db import lease, models
from app.db.clock import from_now
from app.db.database import keys_of
from app.db.models import DeliveryState
from app.db.page import Page, read_page
from app.errors import ConflictError, NotFoundError
from app.project.project_settings import ProjectSettings
from app.project.webhook import WebhookEvent, signing_key
from app.records import Json

_delivery = models.WebhookDelivery
_LOCK = select(func.pg_advisory_xact_lock(func.hashtextextended("claim a webhook's message", 0)))
_PRUNED_AT_ONCE = 1_000

_queue = lease.LeaseQueue(_delivery, _delivery.state == DeliveryState.PENDING)


class WebhookTarget(msgspec.Struct, frozen=True):
    """Where the messages of a project go, and the key that signs them."""

    url: str
    key: bytes


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
    query = select(models.Project.name, models.Project.settings).where(models.Project.id == project_id)
    project = (await session.execute(query)).one()
    webhook = msgspec.convert(project.settings, ProjectSettings).webhook
    if webhook is None or event not in webhook.events:
        return
    about = {"task_id": task_id, "release_id": release_id}
    named = {name: str(value) for name, value in about.items() if value is not None}
    shown = {"project": project.name, **named, **data}
    message = {"type": event, "timestamp": datetime.now(UTC).isoformat(), "data": shown}
    body = msgspec.json.encode(message).decode()
    session.add(_delivery(project_id=project_id, event=event, body=body, **about))
    await session.flush()


async def claim(
    session: AsyncSession, owner: str, lease_seconds: float, *, per_project: int
) -> models.WebhookDelivery | None:
    """The message that is due longest, of a project with fewer than `per_project` under way; or None.

    `owner` is of this claim alone.

    Concurrent claims wait for each other: each sees how many are under way. Of each project only the first message
    is read, so that a receiver that is down does not make the claims of others slow.
    """
    await session.execute(_LOCK)
    now = select(func.clock_timestamp()).scalar_subquery()  # of which the index is used
    pending = _delivery.state == DeliveryState.PENDING
    free = or_(_delivery.lease_until.is_(None), _delivery.lease_until < now)
    project, other = models.Project, aliased(_delivery)
    first = (
        select(_delivery.id, _delivery.next_at)
        .where(_delivery.project_id == project.id, pending, free, _delivery.next_at <= now)
        .order_by(_delivery.next_at)
        .limit(1)
        .lateral()
    )
    leased = (other.project_id == project.id, other.owner.is_not(None), other.lease_until > now)
    under_way = select(func.count()).select_from(other).where(*leased).scalar_subquery()
    found = select(first.c.id).select_from(project).join(first, true()).where(under_way < per_project)
    oldest = found.order_by(first.c.next_at).limit(1).scalar_subquery()
    claimed = _queue.take(owner, lease_seconds, _delivery.id == oldest, pending, free).returning(_delivery)
    row: models.WebhookDelivery | None = await session.scalar(claimed.execution_options(populate_existing=True))
    return row


async def target(session: AsyncSession, project_id: UUID) -> WebhookTarget | None:
    """None if the project has no webhook any more. Raises SettingError if its secret cannot be decrypted here."""
    project = models.Project
    query = select(project.settings, project.webhook_secret).where(project.id == project_id)
    row = (await session.execute(query)).one_or_none()
    webhook = msgspec.convert(row.settings, ProjectSettings).webhook if row else None
    if row is None or webhook is None or row.webhook_secret is None:
        return None
    return WebhookTarget(webhook.url, signing_key(keys_of(session).decrypt(row.webhook_secret)))


async def is_claimed(session: AsyncSession, row: models.WebhookDelivery) -> bool:
    """Whether the claim that returned `row` is still valid: otherwise another sends the message, or soon will."""
    valid = _queue.held(row.owner or "", _delivery.id == row.id, _delivery.lease_until > func.clock_timestamp())
    return await session.scalar(select(_delivery.id).where(valid)) is not None


async def record(
    session: AsyncSession, row: models.WebhookDelivery, result: DeliveryResult, retry_in: float | None
) -> bool:
    """Record an attempt: delivered, to be repeated in some seconds, or failed. False, and nothing is written: the
    message was claimed again."""
    owner, mine = row.owner or "", _delivery.id == row.id
    values = {"status": result.status, "error": result.error}
    if result.error is None:
        change = _queue.finish(owner, mine, state=DeliveryState.DELIVERED, **values)
    elif result.final or retry_in is None:
        change = _queue.finish(owner, mine, state=DeliveryState.FAILED, **values)
    else:
        change = _queue.hand_back(owner, mine, next_at=from_now(retry_in), **values)
    return await session.scalar(change.returning(_delivery.id)) is not None


async def hand_back_all(session: AsyncSession, process: str) -> None:
    """Let others send the process's messages at once; the attempts do not count."""
    await session.execute(_queue.hand_back_all(process, attempt=_delivery.attempt - 1))


async def prune(session: AsyncSession, keep_seconds: float) -> bool:
    """Delete some messages that were delivered or given up longer ago. Returns whether there may be more."""
    limit = select(from_now(-keep_seconds)).scalar_subquery()  # of which the index is used
    old = select(_delivery.id).where(_delivery.finished_at < limit).limit(_PRUNED_AT_ONCE)
    which = _delivery.id.in_(old.with_for_update(skip_locked=True))
    deleted = await session.scalars(delete(_delivery).where(which).returning(_delivery.id))
    return len(deleted.all()) == _PRUNED_AT_ONCE


async def get(session: AsyncSession, delivery_id: UUID, project_id: UUID | None = None) -> models.WebhookDelivery:
    """Raises NotFoundError also for one of another project than the one given."""
    row = await session.get(_delivery, delivery_id, populate_existing=True)
    if row is None or project_id not in (None, row.project_id):
        raise NotFoundError(f"no delivery has the id {delivery_id}")
    return row


async def page(
    session: AsyncSession,
    project_id: UUID | None,
    state: DeliveryState | None,
    *,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[models.WebhookDelivery]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_delivery)
    if project_id is not None:
        query = query.where(_delivery.project_id == project_id)
    if state is not None:
        query = query.where(_delivery.state == state)
    return await read_page(session, query, _delivery, cursor, limit)


async def resend(session: AsyncSession, delivery_id: UUID) -> models.WebhookDelivery:
    """Send a message again, with all attempts anew. Raises ConflictError if it has yet to be sent."""
    again = (
        update(_delivery)
        .where(_delivery.id == delivery_id, _delivery.state != DeliveryState.PENDING)
        .values(state=DeliveryState.PENDING, attempt=0, next_at=func.clock_timestamp(), finished_at=None)
    )
    row: models.WebhookDelivery | None = await session.scalar(
        again.returning(_delivery).execution_options(populate_existing=True)
    )
    if row is None:
        raise ConflictError(f"delivery {delivery_id} is pending already: it will be sent")
    return row
