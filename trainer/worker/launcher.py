"""The Celery worker for training, which launches a process for each run. Imports no torch.

Its messages only say that a run waits: the rows are the queue. A thread keeps it moving: it fires schedules,
requeues lost runs, notifies, and reports which environments are installed here, so that the API can refuse
others at once. Any number of workers may do so at once: the rows decide.
"""

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO
from uuid import UUID

import structlog
from celery import Celery, signals
from celery.worker import state

from app.base import plugins
from app.base.errors import EngineError, NotFoundError, first_line
from app.base.loop import LivenessListener, LivenessReporter, Loop
from app.base.plugins import EnvironmentInfo, options_schema
from app.base.processes import new_owner, python_module
from app.base.settings import Settings
from app.db.database import TRANSIENT, Sessions, open_database
from app.db.tables import RunState
from app.releases import manifest_store
from app.runs import schedule
from app.runs import store as runs
from app.runs.broker import TRAIN, notify_workers, open_broker
from trainer.engines.servers import servers_that_sleep, wake_servers
from trainer.environment import GROUP
from trainer.run_job import run_directory, runs_directory
from trainer.worker.run_files import LogCopy, clear_ended

log = structlog.get_logger(__name__)
_RECONCILE_SECONDS = 2.0
_CLEAR_SECONDS = 30.0
_REST = 20  # times what a round of schedules took
TRAIN_COMMAND = python_module("trainer.worker.run_process")
_POLL_SECONDS = 0.2
_START_SECONDS = 120.0  # until the first sign of life of a run


class EnvironmentReport:
    """The environments of this process, imported once, reported under the host's name."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._environments: list[EnvironmentInfo] | None = None

    async def send(self) -> None:
        if self._environments is None:
            self._environments = await asyncio.to_thread(installed_environments)
        async with self._sessions.begin() as session:
            await runs.report(session, socket.gethostname(), self._environments)


def installed_environments() -> list[EnvironmentInfo]:
    """The environments of installed distributions. One that cannot be loaded is logged and left out, and so is one
    whose worlds are not installed.
    """
    found = []
    for registration in (plugins.find(GROUP, name) for name in plugins.names(GROUP)):
        try:
            load = registration.load()
            if hasattr(load, "installed") and not load.installed():
                continue
            schema = options_schema(load)
        except Exception:  # code of other packages: a broken one must not stop the worker
            log.exception("an environment cannot be loaded", environment=registration.name)
        else:
            version = registration.dist.version if registration.dist else ""
            found.append(EnvironmentInfo(registration.name, version, schema))
    return found


Notify = Callable[[UUID], None]


@dataclass(kw_only=True)
class QueueReconciler:
    """Reconciles the queue from `start` until `stop`, in a thread with an event loop of its own."""

    database_url: str
    notify: Notify  # called while this worker `is_idle`; busy ones would fill the broker with messages
    is_idle: Callable[[], bool]
    runs: Path  # has the directories of runs
    seconds: float
    servers_that_sleep: Sequence[str]  # during updates; they are woken while no run is running
    notify_socket: str  # for signs of life of this thread

    def __post_init__(self) -> None:
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
        async with open_database(self.database_url, connections=1) as database:

            async def tick() -> None:
                await reconcile(database.sessions, self.notify, self.is_idle)
                await wake_idle(database.sessions, self.servers_that_sleep)

            async def clear() -> None:
                await clear_ended(database.sessions, self.runs)

            fire = partial(fire_schedules, database.sessions, self.seconds)
            report = EnvironmentReport(database.sessions).send
            async with (
                LivenessReporter(self.notify_socket),
                Loop("reconcile the queue of runs", tick, self.seconds, expected=TRANSIENT),
                Loop("fire schedules", fire, self.seconds, expected=TRANSIENT),
                Loop("report the environments", report, runs.REPORT_SECONDS, expected=TRANSIENT),
                Loop("clear the files of runs", clear, _CLEAR_SECONDS, expected=TRANSIENT),
            ):
                await asyncio.to_thread(self._ended.wait)


async def fire_schedules(sessions: Sessions, seconds: float) -> float:
    """Queue what is due. Returns the seconds until the next round: 20 times as many as this one took, at least
    `seconds`. It counts the scored tasks of projects, of which there may be millions.
    """
    began = time.monotonic()
    async with sessions.begin() as session:
        await schedule.tick(session)
    return max(seconds, _REST * (time.monotonic() - began))


async def reconcile(sessions: Sessions, notify: Notify, is_idle: Callable[[], bool]) -> None:
    """Queue lost runs again and, if idle, notify of the runs that can start: messages may have been lost."""
    async with sessions.begin() as session:
        await runs.requeue_expired(session)
    if not is_idle():
        return
    async with sessions() as session:
        waiting = await runs.startable(session)
    for run_id in waiting:
        await asyncio.to_thread(notify, run_id)


async def wake_idle(sessions: Sessions, servers_that_sleep: Sequence[str]) -> None:
    """Wake the model servers if no run is running: one that died during an update leaves them asleep."""
    if not servers_that_sleep:
        return
    async with sessions() as session:
        busy = await manifest_store.any_trains(session)
    if not busy:
        with suppress(EngineError):  # `wake_servers` has logged it, and the next round tries again
            await asyncio.to_thread(wake_servers, servers_that_sleep)


def launch_run(run_id: UUID, settings: Settings, command: Sequence[str], is_stopping: Callable[[], bool]) -> None:
    """Execute a queued run in a process of its own, terminated if `is_stopping`. Blocks until that has ended."""
    owner = new_owner()
    arguments = [*command, str(run_id), "--owner", owner, "--worker", str(os.getpid())]
    try:
        if not is_stopping() and asyncio.run(_is_queued(run_id, settings)):
            with _output(run_id, settings) as output:
                code = _run(arguments, output, is_stopping, settings.hang_seconds)
            if code:
                log.warning("a training process died", run=str(run_id), code=code)
            asyncio.run(_settle(run_id, owner, settings, died=code != 0))
    except TRANSIENT as error:
        log.warning("the database is unavailable, the run waits", run=str(run_id), cause=first_line(error))


def _run(
    command: Sequence[str], output: IO[bytes] | None, is_stopping: Callable[[], bool], hang_seconds: float
) -> int:
    """Run the process and return its exit code. Spawned, because CUDA does not survive a fork."""
    with closing(LivenessListener()) as listener:
        process = subprocess.Popen(
            command,
            env={**os.environ, "NOTIFY_SOCKET": listener.address},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return _attend(process, listener, is_stopping, hang_seconds)
        finally:
            with suppress(ProcessLookupError):  # the whole group has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _attend(
    process: "subprocess.Popen[bytes]",
    listener: LivenessListener,
    is_stopping: Callable[[], bool],
    hang_seconds: float,
) -> int:
    """Wait until the process has ended, or kill it once it gives no sign of life. Returns its exit code."""
    terminated, silent, allowed = False, 0.0, max(hang_seconds, _START_SECONDS)
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if is_stopping() and not terminated:
                process.terminate()
                terminated = True
        if listener.heard():
            silent, allowed = 0.0, hang_seconds
        silent += _POLL_SECONDS  # not what a clock shows: this process may have been stopped itself
        if silent > allowed:
            log.warning("a training process gave no sign of life and is killed", seconds=allowed)
            process.kill()


@contextmanager
def _output(run_id: UUID, settings: Settings) -> Iterator[IO[bytes] | None]:
    """The run's log file. None, our own output, if it cannot be opened: the run then fails with the reason."""
    try:
        directory = run_directory(settings, run_id)
        directory.mkdir(parents=True, exist_ok=True)
        output = (directory / "log").open("ab")
    except OSError:
        yield None
        return
    with output:
        yield output


async def _is_queued(run_id: UUID, settings: Settings) -> bool:
    async with open_database(settings.database_url, connections=1) as database, database.sessions() as session:
        try:
            return (await runs.get(session, run_id)).state is RunState.QUEUED
        except NotFoundError:  # its project was deleted
            return False


async def _settle(run_id: UUID, owner: str, settings: Settings, *, died: bool) -> None:
    """Copy what the process logged last, and end the lease of a dead one, so that the run is requeued at once."""
    async with open_database(settings.database_url, connections=1) as database:
        await LogCopy(run_id, run_directory(settings, run_id)).copy(database.sessions)
        if died:
            async with database.sessions.begin() as session:
                await runs.expire(session, run_id, owner)


def build(settings: Settings, command: Sequence[str] = TRAIN_COMMAND) -> Celery:
    """Build the application: `command` executes one run. A running worker also reconciles the queue."""
    broker = open_broker(settings)

    @broker.task(name=TRAIN, shared=False)
    def train(run_id: str) -> None:
        """Harmless if it is delivered twice, or the run is gone."""
        launch_run(UUID(run_id), settings, command, _is_stopping)

    reconciler = QueueReconciler(
        database_url=settings.database_url,
        notify=partial(notify_workers, broker),
        is_idle=lambda: not state.active_requests,
        runs=runs_directory(settings),
        seconds=min(_RECONCILE_SECONDS, settings.lease_seconds / 4),
        servers_that_sleep=servers_that_sleep(settings),
        notify_socket=settings.notify_socket,
    )
    signals.worker_ready.connect(lambda **_: reconciler.start(), weak=False)
    signals.worker_shutdown.connect(lambda **_: reconciler.stop(), weak=False)
    return broker


def _is_stopping() -> bool:
    """Celery only records the signal, and waits until its job is done."""
    return state.should_stop is not None or state.should_terminate is not None
