"""Launch the process of a training run, and wait until it has ended."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import IO
from uuid import UUID, uuid4

import structlog

from app.db import run_queue, runs
from app.db.database import TRANSIENT, open_database
from app.db.tables import RunState
from app.errors import NotFoundError, first_line
from app.liveness import LivenessListener
from app.python_process import python_module
from app.settings import Settings
from trainer.run_job import run_directory
from trainer.worker.log_copy import LogCopy

log = structlog.get_logger(__name__)

TRAIN_COMMAND = python_module("trainer.worker.run_process")
_POLL_SECONDS = 0.2
_START_SECONDS = 120.0  # until its first sign of life


def launch_run(run_id: UUID, settings: Settings, command: Sequence[str], is_stopping: Callable[[], bool]) -> None:
    """Execute a queued run in a process of its own, terminated if `is_stopping`. Blocks until that has ended."""
    owner = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
    arguments = [*command, str(run_id), "--owner", owner, "--worker", str(os.getpid())]
    try:
        if not is_stopping() and asyncio.run(_is_queued(run_id, settings)):
            with _output(run_id, settings) as output:
                code = _run(arguments, output, is_stopping, settings.hang_seconds)
            if code:
                log.warning("a training process died", run=str(run_id), code=code)
            asyncio.run(_settle(run_id, owner, settings, died=code != 0))
    except TRANSIENT as error:
        log.warning(
            "the database is unavailable, the run waits",
            run=str(run_id),
            cause=first_line(error),
        )


def _run(
    command: Sequence[str], output: IO[bytes] | None, is_stopping: Callable[[], bool], hang_seconds: float
) -> int:
    """Run the process and return its exit code. Spawned, because CUDA does not survive a fork."""
    with contextlib.closing(LivenessListener()) as listener:
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
            with contextlib.suppress(ProcessLookupError):  # the whole group has ended
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


@contextlib.contextmanager
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
                await run_queue.expire(session, run_id, owner)
