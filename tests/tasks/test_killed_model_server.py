"""A model server is killed under a task, and again while its runner retries: the task goes on."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.db.tables import TaskState
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import RetryingEngine
from tests.support.chaos_engine import WRITES
from tests.support.ledger_project import LedgerProject, until
from tests.support.processes import free_ports

QUICK = HealthChecks(interval=0.05, timeout=10.0)


@asynccontextmanager
async def model_server(port: int, directory: Path) -> AsyncIterator[None]:
    """Killed at the end."""
    command = (sys.executable, "-m", "tests.support.chaos_engine", str(port), str(directory))
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def test_a_task_survives_the_deaths_of_its_model_server(project: LedgerProject, tmp_path: Path) -> None:
    [port] = free_ports(1)
    ledger = project.ledger
    async with (
        HttpEngine([f"http://127.0.0.1:{port}"], checks=QUICK) as engine,
        project.runner(RetryingEngine(engine, seconds=120, pause=0.02)),
    ):
        async with model_server(port, tmp_path):
            await until(lambda: engine.answers)
            task_id = await project.submit("write hello now")
            await until(lambda: len(ledger.entries) >= 2)
            claim = (await project.row(task_id)).owner
        await until(lambda: not engine.answers)
        async with model_server(port, tmp_path):
            await until(lambda: engine.occupancy().in_flight > 0)
        await until(lambda: not engine.answers)
        retried = await project.row(task_id)
        assert (retried.state, retried.owner) == (TaskState.RUNNING, claim), "it was not even handed back"
        async with model_server(port, tmp_path):
            row = await project.ended(task_id)
    assert (row.state, row.attempt, row.deaths, row.failure) == (TaskState.DONE, 1, 0, None)
    assert [entry.text for entry in ledger.entries] == [f"hello {number + 1}" for number in range(WRITES)]
