"""The `sage` command against the real server; the test plays the worker."""

import asyncio
import os
import sys
from typing import Any, NamedTuple
from uuid import UUID

from app.db import run_queue
from app.db.models import RunState
from tests.api_app import ApiApp


class Ended(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


class SageCommand:
    """Runs `sage` against the server."""

    def __init__(self, api: ApiApp, url: str) -> None:
        self.api, self.url = api, url

    async def sage(self, command: str, *options: str, **env: str) -> Ended:
        key = self.api.client.headers["Authorization"].removeprefix("Bearer ")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.cli", command, "--url", self.url, *options),
            env={**os.environ, "KEY": key, **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return Ended(process.returncode or 0, out.decode(), err.decode())

    async def run_id(self) -> UUID:
        """Of the newest run, once there is one."""
        async with asyncio.timeout(30):
            while not (found := (await self.api.client.get("/v1/training-runs")).json()["runs"]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return UUID(found[0]["id"])

    async def work(self, *metrics: dict[str, Any], state: RunState = RunState.DONE, **how: Any) -> None:
        """Carry the next run out."""
        run_id, sessions = await self.run_id(), self.api.sessions
        async with sessions.begin() as session:
            await run_queue.claim(session, "worker", 30, run_id)
        for index, each in enumerate(metrics, start=1):
            async with sessions.begin() as session:
                await run_queue.append_step(session, run_id, "worker", index, each, total=len(metrics))
        async with sessions.begin() as session:
            await run_queue.finish(session, run_id, "worker", state, **how)
