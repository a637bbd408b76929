"""Keeps the lease of a training run while it trains, and ends the process when it may not go on.

A thread with an event loop and a connection of its own: training blocks the loop of the main thread for minutes.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from uuid import UUID

import msgspec
import structlog

from app.db import run_queue
from app.db.database import AWAY, Sessions, open_database
from app.db.models import RunState
from app.errors import ConflictError

log = structlog.get_logger(__name__)

_BEAT_SECONDS = 0.5  # at most; also how soon a cancellation is seen
LOST, HANDED_BACK = 3, 4  # exit codes


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and by whom it is held."""

    run_id: UUID
    owner: str
    lease_seconds: float
    worker: int = 0  # the process that started this one; when that is gone, this one goes, too. 0: nobody
    grace_seconds: float = 5.0  # for a run that is cancelled, to end by itself


class Heartbeat:
    """Beats from `start` until `stop`. `cancel` is called, from the thread, once someone cancels the run."""

    def __init__(self, database_url: str, held: Held, cancel: Callable[[], object]) -> None:
        self._url = database_url
        self._held = held
        self._cancel = cancel
        self._cancelled_at: float | None = None
        self._asked_to_stop = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The run has come to its end; what is left is to write it down."""
        self._ended.set()
        self._thread.join()

    def hand_back(self) -> None:
        """This process is to end, the run is not: soon another process takes it up. Safe in a signal handler."""
        self._asked_to_stop = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled_at is not None

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_for_ever())
        finally:
            if not self._ended.is_set():  # a run that nobody keeps alive must not go on
                os._exit(LOST)

    async def _beat_for_ever(self) -> None:
        async with open_database(self._url, connections=1) as database:
            kept = time.monotonic()
            while not self._ended.is_set():
                try:
                    async with asyncio.timeout(
                        self._held.lease_seconds / 2
                    ):  # a database may also just not answer
                        await self._beat(database.sessions)
                    kept = time.monotonic()
                except AWAY as error:
                    log.warning("the lease cannot be kept", cause=str(error).partition("\n")[0])
                if time.monotonic() - kept > self._held.lease_seconds:
                    self._exit(LOST, "the database was away for longer than the lease lasts")
                await asyncio.to_thread(self._ended.wait, min(_BEAT_SECONDS, self._held.lease_seconds / 4))

    async def _beat(self, sessions: Sessions) -> None:
        held, stopping, cancelled = self._held, self._asked_to_stop, False
        if held.worker and os.getppid() != held.worker:
            self._exit(LOST, "the worker is gone")
        try:
            async with sessions.begin() as session:
                if stopping:
                    await run_queue.hand_back(session, held.run_id, held.owner)
                else:
                    cancelled = await run_queue.extend(session, held.run_id, held.owner, held.lease_seconds)
        except ConflictError as lost:
            self._exit(LOST, str(lost))
        if stopping:
            self._exit(HANDED_BACK, "asked to stop")
        if cancelled:
            await self._end_cancelled(sessions)

    async def _end_cancelled(self, sessions: Sessions) -> None:
        """First kindly; then, where the main thread does not come to it, by force."""
        if self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            self._cancel()
        elif time.monotonic() - self._cancelled_at > self._held.grace_seconds:
            async with sessions.begin() as session:
                await run_queue.finish(session, self._held.run_id, self._held.owner, RunState.CANCELLED)
            self._exit(0, "cancelled")

    def _exit(self, code: int, reason: str) -> None:
        """At once, whatever the main thread is at: it must not write any more."""
        if not self._ended.is_set():
            log.warning("this process ends", run=str(self._held.run_id), reason=reason)
            os._exit(code)
