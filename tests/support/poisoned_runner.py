"""A runner process that some tasks stop: `python -m tests.support.poisoned_runner DATABASE_URL DIRECTORY
SECONDS`.
"""

import asyncio
import os
import re
import sys
from pathlib import Path

from app.agent.rollout import StopSignal
from app.base.processes import new_owner
from app.db import tables
from app.engine.dispatch import Occupancy
from app.tasks.queue import is_condemned
from app.tasks.runner import CrashFile, MemoryWatch, Runner, RunnerOptions, RunnerPresence, Watchdog
from tests.support.runner_process import open_executor

OPTIONS = RunnerOptions(concurrency=6, lease_seconds=30, poll_seconds=0.1)
"""A lease that no test waits for: the tasks of a dead runner are found by its process id."""


async def harm(instruction: str) -> None:
    """After a moment, so that other tasks are under way."""
    await asyncio.sleep(0.5)
    if "burn" in instruction:
        re.match("(a+)+$", "a" * 60 + "b")  # holds the GIL for years
    if "abort" in instruction:
        os.abort()
    if "linger" in instruction:
        await asyncio.sleep(3)


async def run(database_url: str, directory: Path, seconds: float) -> None:
    owner = new_owner()
    async with (
        CrashFile(directory / "runners", owner, seconds / 2) as crashes,
        Watchdog(seconds),
        open_executor(database_url, directory / str(os.getpid())) as (executor, sandbox),
    ):

        async def execute(row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
            if not is_condemned(row):  # else it is only recorded
                await harm(row.instruction)
            await executor.execute(row, owner, stop_signal)

        memory = MemoryWatch(1 << 40, lambda: None)
        idle = Occupancy({}, in_flight=0, waiting=0)
        async with Runner(executor.sessions, execute, OPTIONS, owner) as runner:
            presence = RunnerPresence(executor.sessions, runner, sandbox, memory, lambda: idle, crashes=crashes)
            async with presence:
                await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
