"""Keep the queue of runs moving, in a thread of every worker: fire schedules, requeue lost runs, notify.

Any number of workers may do so at once: the rows decide. The thread also reports the worker's environments.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from app.db import adapters, environments, run_queue, schedules
from app.db.database import TRANSIENT, Sessions, open_database
from app.errors import EngineError
from app.liveness import LivenessReporter
from app.loop import Loop
from trainer.engines.sleep import wake_servers
from trainer.worker.environment_report import EnvironmentReport
from trainer.worker.run_files import clear_ended

Notify = Callable[[UUID], None]

_CLEAR_SECONDS = 30.0
_REST = 20  # times what a round of schedules took


class QueueReconciler:
    """Reconciles the queue from `start` until `stop`, in a thread with an event loop of its own."""

    def __init__(
        self,
        database_url: str,
        notify: Notify,
        *,
        is_idle: Callable[[], bool],
        runs: Path,
        seconds: float = 2.0,
        servers_that_sleep: Sequence[str] = (),
        notify_socket: str = "",
    ) -> None:
        """`notify` is called while this worker `is_idle`; busy ones would fill the broker with messages.

        `runs` has the directories of runs. `servers_that_sleep` are model servers that sleep during updates, and
        are woken while no run is running. Signs of life of this thread go to `notify_socket`.
        """
        self._url = database_url
        self._notify = notify
        self._is_idle = is_idle
        self._runs = runs
        self._servers_that_sleep = servers_that_sleep
        self._seconds = seconds
        self._notify_socket = notify_socket
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queue reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._reconcile_until_stopped())
        finally:
            if not self._ended.is_set():  # a worker whose queue is not reconciled must not seem healthy
                os.kill(os.getpid(), signal.SIGTERM)

    async def _reconcile_until_stopped(self) -> None:
        async with open_database(self._url, connections=1) as database:

            async def tick() -> None:
                await reconcile(database.sessions, self._notify, self._is_idle)
                await wake_idle(database.sessions, self._servers_that_sleep)

            async def fire() -> float:
                return await fire_schedules(database.sessions, self._seconds)

            async def clear() -> None:
                await clear_ended(database.sessions, self._runs)

            report = EnvironmentReport(database.sessions).send
            async with (
                LivenessReporter(self._notify_socket),
                Loop("reconcile the queue of runs", tick, self._seconds, expected=TRANSIENT),
                Loop("fire schedules", fire, self._seconds, expected=TRANSIENT),
                Loop("report the environments", report, environments.REPORT_SECONDS, expected=TRANSIENT),
                Loop("clear the files of runs", clear, _CLEAR_SECONDS, expected=TRANSIENT),
            ):
                await asyncio.to_thread(self._ended.wait)


async def fire_schedules(sessions: Sessions, seconds: float) -> float:
    """Queue what is due. Returns the seconds until the next round: 20 times as many as this one took, at least
    `seconds`. It counts the scored tasks of projects, of which there may be millions.
    """
    began = time.monotonic()
    async with sessions.begin() as session:
        await schedules.tick(session)
    return max(seconds, _REST * (time.monotonic() - began))


async def reconcile(sessions: Sessions, notify: Notify, is_idle: Callable[[], bool]) -> None:
    """Queue lost runs again and, if idle, notify of the runs that can start: messages may have been lost."""
    async with sessions.begin() as session:
        await run_queue.requeue_expired(session)
    if not is_idle():
        return
    async with sessions() as session:
        waiting = await run_queue.startable(session)
    for run_id in waiting:
        await asyncio.to_thread(notify, run_id)


async def wake_idle(sessions: Sessions, servers_that_sleep: Sequence[str]) -> None:
    """Wake the model servers if no run is running: one that died during an update leaves them asleep."""
    if not servers_that_sleep:
        return
    async with sessions() as session:
        busy = await adapters.any_trains(session)
    if not busy:
        with suppress(EngineError):  # `wake_servers` has logged it, and the next round tries again
            await asyncio.to_thread(wake_servers, servers_that_sleep)
