"""Keeps the queue of runs moving, in a thread of every worker: fires schedules, finds lost runs, rings again.

What it does is safe to do at once in any number of workers: the tables decide.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

import structlog

from app.db import run_queue, schedules
from app.db.database import AWAY, Sessions, open_database
from app.errors import EngineError
from trainer.engines.sleep import wake

log = structlog.get_logger(__name__)

Ring = Callable[[UUID], None]


class Reconciler:
    """Looks after the queue from `start` until `stop`."""

    def __init__(
        self, database_url: str, ring: Ring, *, seconds: float = 2.0, sleepers: Sequence[str] = ()
    ) -> None:
        """`sleepers` are the model servers that sleep while a run updates, and are woken where none does."""
        self._url = database_url
        self._ring = ring
        self._sleepers = sleepers
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._look_for_ever())
        finally:
            if not self._ended.is_set():  # a defect: a worker that looks after nothing must not seem well
                os.kill(os.getpid(), signal.SIGTERM)

    async def _look_for_ever(self) -> None:
        async with open_database(self._url, connections=1) as database:
            while not self._ended.is_set():
                try:
                    await reconcile(database.sessions, self._ring)
                    await rouse(database.sessions, self._sleepers)
                except AWAY as error:
                    log.warning("the queue of runs cannot be looked after", cause=str(error).partition("\n")[0])
                await asyncio.to_thread(self._ended.wait, self._seconds)


async def reconcile(sessions: Sessions, ring: Ring) -> None:
    """One look. Rings only for what is committed."""
    async with sessions.begin() as session:
        await schedules.tick(session)
    async with sessions.begin() as session:
        await run_queue.requeue_expired(session)
    async with sessions.begin() as session:
        waiting = await run_queue.to_ring(session)
    for run_id in waiting:
        await asyncio.to_thread(ring, run_id)


async def rouse(sessions: Sessions, sleepers: Sequence[str]) -> None:
    """A run that died in the middle of an update leaves them asleep: nobody else would wake them."""
    if not sleepers:
        return
    async with sessions() as session:
        busy = await run_queue.any_running(session)
    if not busy:
        with suppress(EngineError):  # `wake` has told of it, and it is tried again at the next look
            await asyncio.to_thread(wake, sleepers)
