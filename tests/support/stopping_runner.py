"""A runner process that stops like a paused machine: `python -m tests.support.stopping_runner DATABASE_URL
DIRECTORY`.

It stops once, when its first write is prepared and not yet in the journal; with `committed` as a third argument,
when it is in the journal and not yet sent; with `renewing`, while it renews a lease, when the task's row is
locked.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine

from app.tasks.runner import Runner
from tests.support.runner_process import OPTIONS, open_executor


class StopsOnce:
    def __init__(self) -> None:
        self._stopped = self._renewed = False

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)

    async def on_request(self, request: httpx.Request) -> None:
        if request.method == "POST":
            self.stop()

    def on_statement(self, _connection: Connection, _cursor: object, statement: str, *_: Any) -> None:
        self._renewed |= statement.startswith("UPDATE tasks SET lease_until")

    def on_executed(self, _connection: Connection, _cursor: object, statement: str, *_: Any) -> None:
        if "INSERT INTO task_calls" in statement and "begun" in statement:
            self.stop()

    def on_commit(self, _connection: Connection) -> None:
        if self._renewed:
            self.stop()


async def run(database_url: str, directory: Path, moment: str) -> None:
    once = StopsOnce()
    async with open_executor(database_url, directory) as (executor, _):
        engine: AsyncEngine = executor.sessions.kw["bind"]
        if moment == "committed":
            event.listen(engine.sync_engine, "after_cursor_execute", once.on_executed)
        elif moment == "renewing":
            event.listen(engine.sync_engine, "before_cursor_execute", once.on_statement)
            event.listen(engine.sync_engine, "commit", once.on_commit)
        else:
            executor.client.event_hooks = {"request": [once.on_request]}
        async with Runner(executor.sessions, executor.execute, OPTIONS):
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), "".join(sys.argv[3:])))
