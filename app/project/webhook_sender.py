"""Sends messages to webhooks, each until it is delivered or given up. Any number of processes may."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Self

import httpx
import structlog

from app.db import tables, webhooks
from app.db.database import TRANSIENT, Sessions
from app.db.webhooks import DeliveryResult, WebhookTarget
from app.errors import AppError
from app.loop import Loop
from app.project.claimed_messages import ClaimedMessages, SendLimits
from app.project.signed_post import PostError, SignedPost, post, status_problem

log = structlog.get_logger(__name__)

_MINUTE, _HOUR = 60.0, 3600.0
_DAY = 24 * _HOUR
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
        self._messages = ClaimedMessages("send webhooks", sessions, webhooks.QUEUE, self._deliver, options)
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
            more = await webhooks.prune(session, self._options.keep_seconds)
        return 0 if more else None

    async def _deliver(self, row: tables.WebhookDelivery) -> None:
        try:
            async with self._sessions() as session:
                if not await webhooks.QUEUE.is_claimed(session, row):  # this process has stalled
                    return
                target = await webhooks.target(session, row.project_id)
            result = _NO_TARGET if target is None else await self._send(row, target)
        except AppError as error:  # the secret cannot be decrypted here
            result = DeliveryResult(error=str(error))
        retry_in = self._messages.delay_after(row.attempt)
        async with self._sessions.begin() as session:
            recorded = await webhooks.record(session, row, result, retry_in)
        if not recorded:
            log.warning("a message to a webhook was claimed again, this result is dropped", delivery=str(row.id))
        elif result.error is not None:
            about = {"delivery": str(row.id), "attempt": row.attempt, "cause": result.error}
            log.warning("a message to a webhook was not delivered", **about)

    async def _send(self, row: tables.WebhookDelivery, target: WebhookTarget) -> DeliveryResult:
        message = SignedPost(target.url, target.key, f"msg_{row.id.hex}", row.body.encode())
        try:
            status, _ = await post(self._client, message, seconds=self._options.timeout)
        except PostError as error:
            return DeliveryResult(error=str(error))
        return DeliveryResult(status=status, error=status_problem(status), final=status == HTTPStatus.GONE)
