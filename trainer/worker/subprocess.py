"""What a worker does for a run: starts the process that trains, and stays until that has ended."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO
from uuid import UUID, uuid4

import structlog

from app.db import run_queue, runs
from app.db.database import AWAY, open_database
from app.db.models import RunState
from app.errors import NotFoundError
from app.settings import Settings
from trainer.job import run_directory

log = structlog.get_logger(__name__)

TRAINING = (sys.executable, "-m", "trainer.worker.run_process")
_POLL_SECONDS = 0.2


def attend(run_id: UUID, settings: Settings, command: Sequence[str], stopping: Callable[[], bool]) -> None:
    """See a run through, if it waits. Blocks until its process has ended; if `stopping`, it hands the run back."""
    owner = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    arguments = [*command, str(run_id), "--owner", owner, "--worker", str(os.getpid())]
    try:
        if not stopping() and asyncio.run(_waits(run_id, settings)):
            with _output(run_id, settings) as output:
                code = _see_through(arguments, output, stopping)
            if code:
                log.warning("a training process ended before its run", run=str(run_id), code=code)
                asyncio.run(_give_up(run_id, owner, settings))
    except AWAY as error:
        log.warning("a run has to wait", run=str(run_id), cause=str(error).partition("\n")[0])


def _see_through(command: Sequence[str], output: IO[bytes] | None, stopping: Callable[[], bool]) -> int:
    """The exit code. Spawned, not forked, because CUDA does not live through a fork."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    told = False
    try:
        while True:
            try:
                return process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if stopping() and not told:
                    process.terminate()
                    told = True
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing of it is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def _output(run_id: UUID, settings: Settings) -> Iterator[IO[bytes] | None]:
    """The run's log. None, which is our own, where it cannot be written: the run itself will say why."""
    try:
        directory = run_directory(settings, run_id)
        directory.mkdir(parents=True, exist_ok=True)
        output = (directory / "log").open("ab")
    except OSError:
        yield None
        return
    with output:
        yield output


async def _waits(run_id: UUID, settings: Settings) -> bool:
    async with open_database(settings.database_url, connections=1) as database, database.sessions() as session:
        try:
            return (await runs.get(session, run_id)).state is RunState.QUEUED
        except NotFoundError:  # its project was deleted
            return False


async def _give_up(run_id: UUID, owner: str, settings: Settings) -> None:
    """Others need not wait until the lease of a dead process runs out."""
    async with (
        open_database(settings.database_url, connections=1) as database,
        database.sessions.begin() as session,
    ):
        await run_queue.expire(session, run_id, owner)
