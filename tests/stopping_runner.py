"""A runner process that stops like a paused machine: `python -m tests.stopping_runner DATABASE_URL DIRECTORY`.

It stops once, when its first write is in the journal and about to be sent.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx

from app.runner.runner import Runner
from tests.runner_process import OPTIONS, open_executor


async def run(database_url: str, directory: Path) -> None:
    stopped = False

    async def stop_once(request: httpx.Request) -> None:
        nonlocal stopped
        if request.method == "POST" and not stopped:
            stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    async with open_executor(database_url, directory) as (executor, _):
        executor.client.event_hooks = {"request": [stop_once]}
        async with Runner(executor.sessions, executor.execute, OPTIONS):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2])))
