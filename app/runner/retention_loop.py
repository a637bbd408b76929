"""Deletes what projects keep for a limited time. Any number of processes may: one at a time does."""

import asyncio
import time
from collections import Counter
from typing import Self

import structlog

from app.db import retention
from app.db.database import TRANSIENT, Sessions
from app.db.retention import RetentionWindow
from app.db.tables import RetentionKind
from app.loop import Loop
from app.telemetry.metrics import RETENTION_DELETED, RETENTION_HELD

log = structlog.get_logger(__name__)

_SECONDS = 600.0
_TASKS = 200  # per transaction


class RetentionLoop:
    """Works while it is entered. Each batch is a transaction, and rests as long as it took."""

    def __init__(self, sessions: Sessions, every: float = _SECONDS, batch: int = _TASKS) -> None:
        self._sessions = sessions
        self._batch = batch
        self._loop = Loop("delete what is no longer kept", self.delete_due, every, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

    async def delete_due(self) -> None:
        """Delete everything that is due now."""
        async with self._sessions() as session:
            windows = await retention.windows(session)
        held = Counter(window.kind for window in windows if window.needed_by)
        for kind in RetentionKind:
            RETENTION_HELD.labels(kind.value).set(held[kind])
        for window in windows:
            await self._delete(window)

    async def _delete(self, window: RetentionWindow) -> None:
        rows, more = 0, True
        while more:
            began = time.monotonic()
            async with self._sessions.begin() as session:
                batch = await retention.delete_some(session, window, self._batch)
            if batch is None:
                return
            more, rows = batch.more, rows + batch.rows
            RETENTION_DELETED.labels(window.kind.value).inc(batch.rows)
            await asyncio.sleep((time.monotonic() - began) if more else 0)
        if rows or window.needed_by:
            until, needed_by = window.until.isoformat(), window.needed_by or None
            about = {"project": window.project, "kind": window.kind.value, "until": until, "needed_by": needed_by}
            log.info("deleted what is no longer kept", rows=rows, **about)
