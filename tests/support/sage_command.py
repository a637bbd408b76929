"""Runs the `sage` command against the real server, and writes the rows that a worker would write."""

import asyncio
import os
import sys
from typing import Any, NamedTuple
from uuid import UUID

from app.db.tables import RunState
from app.runs import store as runs
from tests.support.api_app import ApiApp


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class SageCommand:
    """Runs `sage` with the URL and the key of the server."""

    def __init__(self, api: ApiApp, url: str) -> None:
        self.api, self.url = api, url

    async def run(self, command: str, *options: str, **env: str) -> CommandResult:
        """`command` may have several words: `skills list`."""
        return await self.ended(await self.start(command, *options, **env))

    async def ended(self, process: asyncio.subprocess.Process) -> CommandResult:
        out, err = await process.communicate()
        return CommandResult(process.returncode or 0, out.decode(), err.decode())

    async def start(self, command: str, *options: str, **env: str) -> asyncio.subprocess.Process:
        key = self.api.client.headers["Authorization"].removeprefix("Bearer ")
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.cli", *command.split(), "--url", self.url, *options),
            env={**os.environ, "SAGE_KEY": key, **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run_id(self) -> UUID:
        """The id of the newest run, once it exists."""
        while not (listed := (await self.api.client.get("/v1/training-runs")).json()["runs"]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return UUID(listed[0]["id"])

    async def execute_run(self, *metrics: dict[str, Any], state: RunState = RunState.DONE, **how: Any) -> None:
        """Execute the next run, as a worker would, with these metrics of its steps."""
        run_id, sessions = await self.run_id(), self.api.sessions
        async with sessions.begin() as session:
            await runs.claim(session, "worker", 30, run_id)
        for index, each in enumerate(metrics, start=1):
            async with sessions.begin() as session:
                await runs.append_step(session, run_id, "worker", index, each, total=len(metrics))
        async with sessions.begin() as session:
            await runs.finish(session, run_id, "worker", state, **how)
