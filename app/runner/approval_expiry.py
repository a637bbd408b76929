"""Lets tasks continue whose approval nobody decided on in time."""

from typing import Self

import structlog

from app.base.loop import Loop
from app.db import approvals
from app.db.database import TRANSIENT, Sessions

log = structlog.get_logger(__name__)

_SECONDS = 1.0


class ApprovalExpiry:
    """Expires approvals while it is entered. Any number of processes may."""

    def __init__(self, sessions: Sessions, *, pause: float = _SECONDS) -> None:
        self._sessions = sessions
        self._loop = Loop("expire approvals", self._expire, pause, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        await self._loop.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

    async def _expire(self) -> float | None:
        async with self._sessions.begin() as session:
            expired = await approvals.expire_next(session)
        if expired is None:
            return None
        log.info("nobody decided on an approval in time", approval=str(expired))
        return 0
