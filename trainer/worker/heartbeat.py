"""Renew the lease of a training run, and end the process when it must not continue.

A thread with an event loop and a connection of its own: training blocks the main thread's loop for minutes.
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
from app.db.database import TRANSIENT, Sessions, open_database
from app.db.tables import RunState
from app.errors import ConflictError, first_line
from app.liveness import LivenessReporter
from app.records import RunPart
from trainer.worker.log_copy import LogCopy

log = structlog.get_logger(__name__)

_BEAT_SECONDS = 0.5  # at most; also the delay until a cancellation is seen
LOST, HANDED_BACK = 3, 4  # exit codes


class RunLease(msgspec.Struct, frozen=True, kw_only=True):
    """A run, the owner of its lease, and the lease's length."""

    run_id: UUID
    owner: str
    lease_seconds: float
    worker: int = 0  # the parent: this process exits when it does; 0: none
    grace_seconds: float = 5.0  # for a cancelled run to end by itself


class Heartbeat:
    """Beats from `start` until `stop`. Calls `cancel`, in its own thread, when the run is to be cancelled."""

    def __init__(
        self,
        database_url: str,
        lease: RunLease,
        cancel: Callable[[], object],
        notify_socket: str = "",
        part: Callable[[], RunPart | None] = lambda: None,
        log_copy: LogCopy | None = None,
    ) -> None:
        """Signs of life go to `notify_socket`, whether the database answers or not. Each beat writes `part`."""
        self._url = database_url
        self._life = LivenessReporter(notify_socket)
        self._lease = lease
        self._cancel = cancel
        self._part = part
        self._log_copy = log_copy
        self._written: RunPart | None = None  # the last part
        self._cancelled_at: float | None = None
        self._asked_to_stop = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Call it when the run has ended, before its end is written."""
        self._ended.set()
        self._thread.join()

    def hand_back(self) -> None:
        """Requeue the run and end this process at the next beat. Safe in a signal handler."""
        self._asked_to_stop = True

    @property
    def cancelled(self) -> bool:
        return self._cancelled_at is not None

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_until_ended())
        finally:
            if not self._ended.is_set():  # a run without a lease must not continue
                os._exit(LOST)

    async def _beat_until_ended(self) -> None:
        async with self._life, open_database(self._url, connections=1) as database:
            renewed = time.monotonic()
            while not self._ended.is_set():
                try:
                    async with asyncio.timeout(self._lease.lease_seconds / 2):  # the database may not answer
                        await self._beat(database.sessions)
                        renewed = time.monotonic()
                        if self._log_copy is not None:
                            await self._log_copy.refresh(database.sessions)
                except TRANSIENT as error:
                    log.warning("the database does not answer", cause=first_line(error))
                except Exception:  # the last resort: the run goes on until its lease is lost
                    log.exception("a heartbeat failed")
                if time.monotonic() - renewed > self._lease.lease_seconds:
                    self._exit(LOST, "the database was unavailable for longer than the lease")
                await asyncio.to_thread(self._ended.wait, min(_BEAT_SECONDS, self._lease.lease_seconds / 4))

    async def _beat(self, sessions: Sessions) -> None:
        lease, stopping, cancelled, part = self._lease, self._asked_to_stop, False, self._part()
        if lease.worker and os.getppid() != lease.worker:
            self._exit(LOST, "the worker has died")
        try:
            async with sessions.begin() as session:
                if stopping:
                    await run_queue.hand_back(session, lease.run_id, lease.owner)
                else:
                    new = part if part != self._written else None
                    about = lease.run_id, lease.owner, lease.lease_seconds
                    cancelled = await run_queue.extend(session, *about, part=new)
                    self._written = part
        except ConflictError as lost:
            self._exit(LOST, str(lost))
        if stopping:
            self._exit(HANDED_BACK, "asked to stop")
        if cancelled:
            await self._end_cancelled(sessions)

    async def _end_cancelled(self, sessions: Sessions) -> None:
        """Cancel the run; end the process if the main thread has not reacted within the grace period."""
        if self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            self._cancel()
        elif time.monotonic() - self._cancelled_at > self._lease.grace_seconds:
            async with sessions.begin() as session:
                await run_queue.finish(session, self._lease.run_id, self._lease.owner, RunState.CANCELLED)
            self._exit(0, "cancelled")

    def _exit(self, code: int, reason: str) -> None:
        """End the process at once: the main thread must not write anything more."""
        if not self._ended.is_set():
            log.warning("this process ends", run=str(self._lease.run_id), reason=reason)
            os._exit(code)
