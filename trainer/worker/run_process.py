"""The process that carries one training run out: `python -m trainer.worker.run_process RUN_ID`.

It claims the run, keeps its lease, and writes how it ended. Where it dies, another goes on in its place.
"""

import argparse
import asyncio
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, projects, run_queue
from app.db.database import AWAY, Sessions, open_database
from app.db.models import RunState
from app.errors import StorageError
from app.records import Json
from app.run_settings import read_settings
from app.settings import Settings
from trainer.job import CarryOut, Job, Progress, Result, RunCancelledError, run_directory
from trainer.parent_death import die_with
from trainer.worker.failure import failure_of
from trainer.worker.heartbeat import Heartbeat, Held

log = structlog.get_logger(__name__)

_WRITE_SECONDS = 1.0  # between two tries to write how a run ended


def main(arguments: Sequence[str], carry_out: CarryOut) -> int:
    """The exit code: 0 unless the run has to be taken up again."""
    parser = argparse.ArgumentParser(prog="python -m trainer.worker.run_process", description=__doc__)
    parser.add_argument("run_id", type=UUID)
    parser.add_argument("--owner", default=f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}")
    parser.add_argument("--worker", type=int, default=0, help="number of the process whose end ends this one")
    given = parser.parse_args(arguments)
    if given.worker:
        die_with(given.worker)  # where it cannot be told so, the heartbeat sees to it
    settings = Settings.from_env()
    lease = settings.lease_seconds
    held = Held(run_id=given.run_id, owner=given.owner, lease_seconds=lease, worker=given.worker)
    return asyncio.run(_attempt(held, settings, carry_out))


async def _attempt(held: Held, settings: Settings, carry_out: CarryOut) -> int:
    async with open_database(settings.database_url, connections=5) as database:
        async with database.sessions.begin() as session:
            run = await run_queue.claim(session, held.owner, held.lease_seconds, held.run_id)
        if run is None:
            log.info("this run does not wait, or its project trains already", run=str(held.run_id))
            return 0
        work = asyncio.create_task(_work(run, settings, _RowProgress(database.sessions, held), carry_out))
        loop = asyncio.get_running_loop()
        heartbeat = Heartbeat(settings.database_url, held, lambda: loop.call_soon_threadsafe(work.cancel))
        signal.signal(signal.SIGTERM, lambda *_: heartbeat.hand_back())
        heartbeat.start()
        await asyncio.wait([work])
        heartbeat.stop()
        end = _end(work, heartbeat.cancelled, run_directory(settings, run.id))
        if end is None:
            return 1
        await _write(database.sessions, held, end)
    if end["state"] is RunState.DONE:
        _clear(run_directory(settings, run.id))
    if end["state"] is RunState.CANCELLED:
        os._exit(0)  # a thread that computes still is not waited for
    return 0


async def _work(
    run: models.TrainingRun, settings: Settings, progress: Progress, carry_out: CarryOut
) -> dict[str, Json]:
    directory = _make(run_directory(settings, run.id))
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
    result: dict[str, Json] = msgspec.to_builtins(await carry_out(job, progress))
    return result


def _make(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be made ({error.strerror}): see to SAGE_DATA_DIR") from error
    return directory


def _clear(directory: Path) -> None:
    """What was kept to go on from. The log stays."""
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix != ".log":
            path.unlink(missing_ok=True)


def _end(work: "asyncio.Task[dict[str, Json]]", cancelled: bool, directory: Path) -> dict[str, Any] | None:
    """What becomes of the row. None: the database was away, and the run is taken up again once it is back."""
    error = None if work.cancelled() else work.exception()
    if not work.cancelled() and error is None:
        return {"state": RunState.DONE, "result": work.result()}
    if cancelled or isinstance(error, RunCancelledError):
        return {"state": RunState.CANCELLED}
    error = error or asyncio.CancelledError("a task of the run was cancelled from within")
    traceback.print_exception(error)  # into the run's log, without the values of variables, which may be secrets
    if isinstance(error, OperationalError):
        return None
    return {"state": RunState.FAILED, "failure": failure_of(error, directory)}


async def _write(sessions: Sessions, held: Held, end: dict[str, Any]) -> None:
    """For as long as the lease may last; then somebody else has the run."""
    async with asyncio.timeout(held.lease_seconds):
        while True:
            try:
                async with sessions.begin() as session:
                    await run_queue.finish(session, held.run_id, held.owner, **end)
                return
            except AWAY as error:
                log.warning("the end of the run cannot be written yet", cause=str(error).partition("\n")[0])
            await asyncio.sleep(_WRITE_SECONDS)


class _RowProgress:
    """Tells the database, and hears from it."""

    def __init__(self, sessions: Sessions, held: Held) -> None:
        self._sessions = sessions
        self._held = held

    async def step(self, index: int, total: int, metrics: dict[str, Any]) -> None:
        run_id, owner = self._held.run_id, self._held.owner
        async with self._sessions.begin() as session:
            cancelled = await run_queue.append_step(session, run_id, owner, index, metrics, total=total)
        _stop_if(cancelled)

    async def hold(self, session: AsyncSession) -> None:
        _stop_if(await run_queue.hold(session, self._held.run_id, self._held.owner))


def _stop_if(cancelled: bool) -> None:
    if cancelled:
        raise RunCancelledError("this run was cancelled")


async def _train(job: Job, progress: Progress) -> Result:
    """Imported only now: torch takes seconds, and where it is missing the run is to say so."""
    from trainer.runs.train import carry_out  # noqa: PLC0415

    return await carry_out(job, progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], _train))
