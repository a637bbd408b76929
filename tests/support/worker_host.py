"""Real Celery workers with a data directory and a database, for tests that kill them."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from app.base.model_catalog import SEED
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.db import tables
from app.db.database import Sessions
from app.db.tables import RunState
from app.runs import store as runs
from app.runs.broker import notify_workers, open_broker
from tests.support.processes import descendants, gone
from tests.support.rows import project_row

ENDED = {RunState.DONE, RunState.FAILED, RunState.CANCELLED}
WORKER = ("-m", "celery", "--quiet", "-A", "tests.support.training_worker:celery", "worker", "--pool", "solo")


class WorkerHost:
    """Starts and kills workers, queues runs and waits for them."""

    def __init__(self, sessions: Sessions, database_url: str, directory: Path, broker_url: str = "") -> None:
        self.sessions = sessions
        self.directory = directory
        self.settings = Settings(model=SEED, data_dir=directory, database_url=database_url, broker_url=broker_url)
        self._env = {
            **os.environ,
            "SAGE_MODEL": SEED,
            "DATABASE_URL": database_url,
            "BROKER_URL": broker_url,
            "SAGE_DATA_DIR": str(directory),
            "SAGE_LEASE_SECONDS": "6",
        }
        self._workers: list[asyncio.subprocess.Process] = []

    async def worker(self) -> asyncio.subprocess.Process:
        [worker] = await self.workers(1)
        return worker

    async def workers(self, count: int) -> list[asyncio.subprocess.Process]:
        """Start or kill workers until `count` are running."""
        alive = [worker for worker in self._workers if worker.returncode is None]
        for worker in alive[count:]:
            await self._end(worker)
        self._workers = alive[:count]
        while len(self._workers) < count:
            self._workers.append(await self._start())
        return self._workers

    async def only_worker(self, **env: str) -> asyncio.subprocess.Process:
        """Kill the others, and start one with further settings."""
        await self.workers(0)
        self._workers = [await self._start(**env)]
        return self._workers[0]

    async def _start(self, **env: str) -> asyncio.subprocess.Process:
        arguments = (
            *WORKER,
            "--queues",
            "training",
            "--loglevel",
            "warning",
            "--without-mingle",
            "--without-gossip",
        )
        with (self.directory / "worker.log").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable, *arguments, env=self._env | env, stdout=output, stderr=output
            )

    async def _end(self, worker: asyncio.subprocess.Process) -> None:
        children = descendants(worker.pid)
        worker.kill()
        await worker.wait()
        await gone(children)

    async def queue(
        self, data: str = "", *, steps: int = 4, project: UUID | None = None, notify: bool = True
    ) -> UUID:
        async with self.sessions.begin() as session:
            owner = project or (await project_row(session)).id
            run = await runs.create(session, owner, RunSettings(data=data, steps=steps))
        if notify:
            await asyncio.to_thread(notify_workers, open_broker(self.settings), run.id)
        return run.id

    async def wait_for(self, run_id: UUID, condition: Callable[[tables.TrainingRun], bool]) -> tables.TrainingRun:
        """Returns the run once it fulfils `condition`."""
        while True:
            async with self.sessions() as session:
                run = await runs.get(session, run_id)
            if condition(run):
                return run
            await asyncio.sleep(0.05)

    async def ended(self, run_id: UUID) -> tables.TrainingRun:
        return await self.wait_for(run_id, lambda run: run.state in ENDED)

    async def started(self, run_id: UUID) -> tables.TrainingRun:
        return await self.wait_for(run_id, lambda run: run.state == RunState.RUNNING and run.step > 0)

    def notes(self, run_id: UUID) -> list[list[str]]:
        return [
            line.split() for line in (self.directory / "runs" / str(run_id) / "notes.log").read_text().splitlines()
        ]

    async def close(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                await self._end(worker)
