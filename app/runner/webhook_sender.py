"""Sends messages to webhooks, each until it is delivered or given up. Any number of processes may."""

import asyncio
import random
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Self

import httpx
import msgspec
import structlog

from app.db import models, webhooks
from app.db.database import TRANSIENT, Sessions
from app.db.lease import new_claim
from app.db.webhooks import DeliveryResult, WebhookTarget
from app.errors import AppError, HostError, first_line
from app.loop import Loop
from app.project.webhook import signed_headers
from app.runner.process_identity import new_owner

log = structlog.get_logger(__name__)

_MINUTE, _HOUR = 60.0, 3600.0
_DAY = 24 * _HOUR
_GRACE = 20.0  # seconds of the lease beyond the time limit of a request
_NO_TARGET = DeliveryResult(error="the project has no webhook any more", final=True)


class WebhookOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and intervals of the sender."""

    concurrency: int = 16
    per_project: int = 2  # in all processes, so that a slow receiver delays its own messages only
    timeout: float = 10.0
    poll_seconds: float = 1.0
    delays: Sequence[float] = (5, _MINUTE, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 6 * _HOUR, 14 * _HOUR)
    """Seconds before each further attempt, varied by a fifth; after the last one it is given up."""
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
        self.owner = new_owner()
        self._sessions = sessions
        self._client = client
        self._options = options
        self._under_way: set[asyncio.Task[None]] = set()
        self._loop = Loop("send webhooks", self._claim, options.poll_seconds, expected=TRANSIENT)
        self._pruning = Loop("prune webhooks", self._prune, options.prune_seconds, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        self._loop.start()
        self._pruning.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pruning.stop()
        await self._loop.stop()
        for work in self._under_way:
            work.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        try:
            async with self._sessions.begin() as session:
                await webhooks.hand_back_all(session, self.owner)
        except TRANSIENT as error:
            log.warning("messages to webhooks wait until their leases expire", cause=first_line(error))

    async def _claim(self) -> float | None:
        """Return 0 while there may be more to send."""
        if len(self._under_way) >= self._options.concurrency:
            return None
        lease = self._options.timeout + _GRACE
        async with self._sessions.begin() as session:
            per_project = self._options.per_project
            row = await webhooks.claim(session, new_claim(self.owner), lease, per_project=per_project)
        if row is None:
            return None
        work = asyncio.create_task(self._deliver(row), name=f"webhook {row.id}")
        self._under_way.add(work)
        work.add_done_callback(self._drop)
        return 0

    async def _prune(self) -> float | None:
        async with self._sessions.begin() as session:
            more = await webhooks.prune(session, self._options.keep_seconds)
        return 0 if more else None

    def _drop(self, work: asyncio.Task[None]) -> None:
        self._under_way.discard(work)
        self._loop.wake()
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("a message to a webhook is sent again once its lease expires", exc_info=error)

    async def _deliver(self, row: models.WebhookDelivery) -> None:
        try:
            async with self._sessions() as session:
                if not await webhooks.is_claimed(session, row):  # this process has stalled
                    return
                target = await webhooks.target(session, row.project_id)
            result = _NO_TARGET if target is None else await self._send(row, target)
        except AppError as error:  # the secret cannot be decrypted here
            result = DeliveryResult(error=str(error))
        retry_in = self._delay_after(row.attempt)
        async with self._sessions.begin() as session:
            recorded = await webhooks.record(session, row, result, retry_in)
        if not recorded:
            log.warning("a message to a webhook was claimed again, this result is dropped", delivery=str(row.id))
        elif result.error is not None:
            about = {"delivery": str(row.id), "attempt": row.attempt, "cause": result.error}
            log.warning("a message to a webhook was not delivered", **about)

    async def _send(self, row: models.WebhookDelivery, target: WebhookTarget) -> DeliveryResult:
        body, seconds = row.body.encode(), self._options.timeout
        headers = signed_headers(target.key, f"msg_{row.id.hex}", int(time.time()), body)
        headers |= {"Content-Type": "application/json", "User-Agent": "sage-server"}
        try:
            async with asyncio.timeout(seconds):
                extensions = {"timeout": httpx.Timeout(seconds).as_dict()}
                request = httpx.Request("POST", target.url, headers=headers, content=body, extensions=extensions)
                response = await self._client.send(request, stream=True, follow_redirects=False)
                await response.aclose()  # its body stays unread
        except (TimeoutError, httpx.TimeoutException):
            return DeliveryResult(error=f"no answer within {seconds:g} seconds")
        except HostError as error:
            return DeliveryResult(error=error.message)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return DeliveryResult(error=f"it cannot be reached: {first_line(error)}")
        return _result(response.status_code)

    def _delay_after(self, attempt: int) -> float | None:
        """Seconds until the next attempt; None after the last one."""
        if attempt > len(self._options.delays):
            return None
        return self._options.delays[attempt - 1] * random.uniform(0.8, 1.2)


def _result(status: int) -> DeliveryResult:
    if 200 <= status < 300:
        return DeliveryResult(status=status)
    reason = "it redirects, which is not followed" if 300 <= status < 400 else "it answered with an error"
    return DeliveryResult(status=status, error=f"{reason}: status {status}", final=status == HTTPStatus.GONE)
