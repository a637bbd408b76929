"""The process of one training run: `python -m trainer.worker.run_process RUN_ID`.

It claims the run, renews its lease, and writes how it ended. If it dies, another process resumes the run. The
lease has a thread with an event loop and a connection of its own: training blocks the main thread's loop for
minutes.
"""

import argparse
import asyncio
import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AppError, ConflictError, StorageError, first_line
from app.base.guarded_output import guard_output
from app.base.loop import LivenessReporter
from app.base.processes import exit_with_parent, new_owner
from app.base.run_settings import read_settings
from app.base.settings import Settings
from app.base.values import Json, RunPart
from app.db import tables
from app.db.database import TRANSIENT, Sessions, open_database
from app.db.tables import RunState
from app.projects import store as projects
from app.runs import store as runs
from trainer.run_job import ExecuteRun, Job, Result, RunCancelledError, RunProgress, run_directory
from trainer.worker.run_files import LogCopy, clear, note_project

log = structlog.get_logger(__name__)

_BEAT_SECONDS = 0.5  # at most; also the delay until a cancellation is seen
_GRACE_SECONDS = 5.0  # for a cancelled run to end by itself
LOST, HANDED_BACK = 3, 4  # exit codes
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXTS = ("No space left on device", "Disk quota exceeded")  # of torch and safetensors
_MAX_LENGTH = 2000  # characters of a failure
_RETRY_SECONDS = 1.0  # between two attempts to write how a run ended


class RunLease(msgspec.Struct, frozen=True, kw_only=True):
    """A run, the owner of its lease, and the lease's length."""

    run_id: UUID
    owner: str
    lease_seconds: float
    worker: int = 0  # the parent: this process exits when it does; 0: none


@dataclass(kw_only=True)
class Heartbeat:
    """Beats from `start` until `stop`."""

    lease: RunLease
    settings: Settings
    progress: "RowProgress"  # whose latest part each beat writes
    log_copy: LogCopy
    cancel: Callable[[], object]  # called in a thread of its own when the run is to be cancelled

    def __post_init__(self) -> None:
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
        life = LivenessReporter(self.settings.notify_socket)  # whether the database answers or not
        async with life, open_database(self.settings.database_url, connections=1) as database:
            renewed = time.monotonic()
            while not self._ended.is_set():
                try:
                    async with asyncio.timeout(self.lease.lease_seconds / 2):  # the database may not answer
                        await self._beat(database.sessions)
                        renewed = time.monotonic()
                        await self.log_copy.refresh(database.sessions)
                except TRANSIENT as error:
                    log.warning("the database does not answer", cause=first_line(error))
                except Exception:  # the last resort: the run goes on until its lease is lost
                    log.exception("a heartbeat failed")
                if time.monotonic() - renewed > self.lease.lease_seconds:
                    self._exit(LOST, "the database was unavailable for longer than the lease")
                await asyncio.to_thread(self._ended.wait, min(_BEAT_SECONDS, self.lease.lease_seconds / 4))

    async def _beat(self, sessions: Sessions) -> None:
        lease, stopping, cancelled, part = self.lease, self._asked_to_stop, False, self.progress.latest
        if lease.worker and os.getppid() != lease.worker:
            self._exit(LOST, "the worker has died")
        try:
            async with sessions.begin() as session:
                if stopping:
                    await runs.hand_back(session, lease.run_id, lease.owner)
                else:
                    new = part if part != self._written else None
                    about = lease.run_id, lease.owner, lease.lease_seconds
                    cancelled = await runs.extend(session, *about, part=new)
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
            self.cancel()
        elif time.monotonic() - self._cancelled_at > _GRACE_SECONDS:
            async with sessions.begin() as session:
                await runs.finish(session, self.lease.run_id, self.lease.owner, RunState.CANCELLED)
            self._exit(0, "cancelled")

    def _exit(self, code: int, reason: str) -> None:
        """End the process at once: the main thread must not write anything more."""
        if not self._ended.is_set():
            log.warning("this process ends", run=str(self.lease.run_id), reason=reason)
            os._exit(code)


def describe_failure(error: BaseException, directory: Path) -> str:
    """Describe an error in one line; `directory` is the run's.

    >>> describe_failure(ValueError("odd"), Path("runs/7"))
    'ValueError: odd (a defect: see the end of runs/7/log)'
    """
    chain = list(_chain(error))
    described = f"{type(chain[0]).__name__}: {' '.join(str(chain[0]).split())}"[:_MAX_LENGTH]
    if isinstance(chain[0], AppError):
        return described
    for cause in filter(_is_full, chain):
        return f"{StorageError.__name__}: no space is left for {_place(cause, directory)}: free some, then retry"
    if any(map(_is_out_of_memory, chain)):
        return f"{described} (set a lower micro_batch_tokens, or gradient_checkpointing=true)"
    if isinstance(chain[0], OSError):
        return described
    return f"{described} (a defect: see the end of {directory / 'log'})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, unwrapped from exception groups, then its causes."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    yield error
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from _chain(cause)


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(text in str(error) for text in _FULL_TEXTS)


def _is_out_of_memory(error: BaseException) -> bool:
    """Check torch's error by name: failures are also described where torch is not installed."""
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return named or "can't allocate memory" in str(error)  # torch's message on a CPU


def _place(error: BaseException, directory: Path) -> str:
    named = getattr(error, "filename", None)
    return str(Path(named).parent if isinstance(named, str) else directory)


def main(arguments: Sequence[str], execute: ExecuteRun) -> int:
    """Execute the run and return the exit code: 0 unless the run has to be resumed."""
    parser = argparse.ArgumentParser(prog="python -m trainer.worker.run_process", description=__doc__)
    parser.add_argument("run_id", type=UUID)
    parser.add_argument("--owner", default=new_owner())
    parser.add_argument(
        "--worker", type=int, default=0, help="process id of the worker; this process ends with it"
    )
    given = parser.parse_args(arguments)
    if given.worker:
        exit_with_parent(given.worker)  # where the system cannot do this, the heartbeat does
    guard_output()  # a full disk must not end the run, or its heartbeat
    settings = Settings.from_env()
    lease = RunLease(
        run_id=given.run_id, owner=given.owner, lease_seconds=settings.lease_seconds, worker=given.worker
    )
    return asyncio.run(_attempt(lease, settings, execute))


async def _attempt(lease: RunLease, settings: Settings, execute: ExecuteRun) -> int:
    async with open_database(settings.database_url, connections=5) as database:
        async with database.sessions.begin() as session:
            run = await runs.claim(session, lease.owner, lease.lease_seconds, lease.run_id)
        if run is None:
            log.info("the run is not queued, or its project has a running one", run=str(lease.run_id))
            return 0
        progress, directory = RowProgress(database.sessions, lease), run_directory(settings, run.id)
        work = asyncio.create_task(_work(run, settings, progress, execute))
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(
            lease=lease,
            settings=settings,
            progress=progress,
            log_copy=LogCopy(run.id, directory),
            cancel=lambda: loop.call_soon_threadsafe(work.cancel),
        )
        signal.signal(signal.SIGTERM, lambda *_: heartbeat.hand_back())
        heartbeat.start()
        await asyncio.wait([work])
        heartbeat.stop()
        end = _end(work, heartbeat.cancelled, directory)
        if end is None:
            return 1
        async with LivenessReporter(settings.notify_socket):
            written = await _write(database.sessions, lease, end)
    if written and end["state"] is RunState.DONE:
        clear(directory)
    if end["state"] is RunState.CANCELLED:
        os._exit(0)  # do not wait for a thread that is still computing
    return 0


async def _work(
    run: tables.TrainingRun, settings: Settings, progress: RunProgress, execute: ExecuteRun
) -> dict[str, Json]:
    directory = run_directory(settings, run.id)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be created ({error.strerror}): check SAGE_DATA_DIR") from error
    note_project(directory, run.project_id)
    async with open_database(settings.database_url, connections=1) as database, database.sessions() as session:
        project = await projects.by_id(session, run.project_id)
    job = Job(
        id=run.id,
        project_id=project.id,
        project=project.name,
        settings=read_settings(run.settings),
        directory=directory,
        deployment=settings,
        attempt=run.attempt,
    )
    result: dict[str, Json] = msgspec.to_builtins(await execute(job, progress))
    return result


def _end(work: "asyncio.Task[dict[str, Json]]", cancelled: bool, directory: Path) -> dict[str, Any] | None:
    """The row's new values; None if the database was unavailable, so that the run is resumed later."""
    error = None if work.cancelled() else work.exception()
    if not work.cancelled() and error is None:
        return {"state": RunState.DONE, "result": work.result()}
    if cancelled or isinstance(error, RunCancelledError):
        return {"state": RunState.CANCELLED}
    error = error or asyncio.CancelledError("the run cancelled a task of its own")
    traceback.print_exception(error)  # to the run's log, without local variables, which may hold secrets
    if isinstance(error, OperationalError):
        return None
    return {"state": RunState.FAILED, "failure": describe_failure(error, directory)}


async def _write(sessions: Sessions, lease: RunLease, end: dict[str, Any]) -> bool:
    """Retry until the lease has expired. False: another process has the run."""
    async with asyncio.timeout(lease.lease_seconds):
        while True:
            try:
                async with sessions.begin() as session:
                    return await runs.finish(session, lease.run_id, lease.owner, **end)
            except TRANSIENT as error:
                log.warning("the end of the run cannot be written yet", cause=first_line(error))
            await asyncio.sleep(_RETRY_SECONDS)


class RowProgress:
    """Writes progress to the run's row, and reads its cancellation there."""

    def __init__(self, sessions: Sessions, lease: RunLease) -> None:
        self._sessions = sessions
        self._lease = lease
        self.latest: RunPart | None = None  # which the heartbeat writes

    def part(self, phase: str, done: int, total: int) -> None:
        self.latest = RunPart(phase, done, total, datetime.now(UTC))

    async def step(self, index: int, total: int, metrics: dict[str, Any]) -> None:
        run_id, owner = self._lease.run_id, self._lease.owner
        async with self._sessions.begin() as session:
            cancelled = await runs.append_step(session, run_id, owner, index, metrics, total=total)
        _raise_if(cancelled)

    async def hold(self, session: AsyncSession) -> None:
        _raise_if(await runs.hold(session, self._lease.run_id, self._lease.owner))


def _raise_if(cancelled: bool) -> None:
    if cancelled:
        raise RunCancelledError("the run was cancelled")


async def _train(job: Job, progress: RunProgress) -> Result:
    """Import torch only now: that takes seconds, and a missing torch must be the run's failure."""
    from trainer.run import train  # noqa: PLC0415

    return await train(job, progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _train))
