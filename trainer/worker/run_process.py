"""The process of one training run: `python -m trainer.worker.run_process RUN_ID`.

It claims the run, renews its lease, and writes how it ended. If it dies, another process resumes the run.
"""

import argparse
import asyncio
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import projects, run_queue, tables
from app.db.database import TRANSIENT, Sessions, open_database
from app.db.tables import RunState
from app.errors import StorageError, first_line
from app.guarded_output import guard_output
from app.liveness import LivenessReporter
from app.parent_death import exit_with_parent
from app.records import Json, RunPart
from app.run_settings import read_settings
from app.settings import Settings
from trainer.run_job import ExecuteRun, Job, Result, RunCancelledError, RunProgress, run_directory
from trainer.worker.failure import describe_failure
from trainer.worker.heartbeat import Heartbeat, RunLease
from trainer.worker.log_copy import LogCopy
from trainer.worker.run_files import clear, note_project

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1.0  # between two attempts to write how a run ended


def main(arguments: Sequence[str], execute: ExecuteRun) -> int:
    """Execute the run and return the exit code: 0 unless the run has to be resumed."""
    parser = argparse.ArgumentParser(prog="python -m trainer.worker.run_process", description=__doc__)
    parser.add_argument("run_id", type=UUID)
    parser.add_argument("--owner", default=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}")
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
            run = await run_queue.claim(session, lease.owner, lease.lease_seconds, lease.run_id)
        if run is None:
            log.info("the run is not queued, or its project has a running one", run=str(lease.run_id))
            return 0
        progress = RowProgress(database.sessions, lease)
        work = asyncio.create_task(_work(run, settings, progress, execute))
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(
            settings.database_url,
            lease,
            lambda: loop.call_soon_threadsafe(work.cancel),
            settings.notify_socket,
            lambda: progress.latest,
            LogCopy(run.id, run_directory(settings, run.id)),
        )
        signal.signal(signal.SIGTERM, lambda *_: heartbeat.hand_back())
        heartbeat.start()
        await asyncio.wait([work])
        heartbeat.stop()
        end = _end(work, heartbeat.cancelled, run_directory(settings, run.id))
        if end is None:
            return 1
        async with LivenessReporter(settings.notify_socket):
            written = await _write(database.sessions, lease, end)
    if written and end["state"] is RunState.DONE:
        clear(run_directory(settings, run.id))
    if end["state"] is RunState.CANCELLED:
        os._exit(0)  # do not wait for a thread that is still computing
    return 0


async def _work(
    run: tables.TrainingRun, settings: Settings, progress: RunProgress, execute: ExecuteRun
) -> dict[str, Json]:
    directory = _make(run_directory(settings, run.id))
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


def _make(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be created ({error.strerror}): check SAGE_DATA_DIR") from error
    return directory


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
                    return await run_queue.finish(session, lease.run_id, lease.owner, **end)
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
            cancelled = await run_queue.append_step(session, run_id, owner, index, metrics, total=total)
        _raise_if(cancelled)

    async def hold(self, session: AsyncSession) -> None:
        _raise_if(await run_queue.hold(session, self._lease.run_id, self._lease.owner))


def _raise_if(cancelled: bool) -> None:
    if cancelled:
        raise RunCancelledError("the run was cancelled")


async def _train(job: Job, progress: RunProgress) -> Result:
    """Import torch only now: that takes seconds, and a missing torch must be the run's failure."""
    from trainer.runs.train import train  # noqa: PLC0415

    return await train(job, progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _train))
