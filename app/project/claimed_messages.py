"""Works on claimed messages, several at once, until it is closed. Any number of processes may."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, Self, TypeVar

import msgspec
import structlog

from app.db.database import TRANSIENT, Sessions
from app.db.due_queue import DueQueue
from app.db.lease import new_claim
from app.db.tables import Due
from app.errors import first_line
from app.loop import Loop
from app.process_identity import new_owner

log = structlog.get_logger(__name__)

_GRACE = 20.0  # seconds of the lease beyond the time limit of a request

D = TypeVar("D", bound=Due)


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
