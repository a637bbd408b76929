"""A task that stops its runner fails alone: with real processes, a real supervisor and a real database."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import select

from app.base.values import Stop
from app.db import runners, tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.machine.supervise import ChildProcess, Supervisor
from app.projects import store as projects
from app.tasks import store as tasks
from tests.support.ledger import Ledger
from tests.support.ledger_project import put_ledger, until
from tests.support.processes import alive, descendants, gone

INNOCENTS = 8


@asynccontextmanager
async def runner_processes(
    database_url: str, directory: Path, count: int = 2, watchdog: int = 5
) -> AsyncIterator[None]:
    supervisor = Supervisor(directory / "logs")
    argv = (sys.executable, "-m", "tests.support.poisoned_runner", database_url, str(directory), str(watchdog))
    names = [f"runner-{number}" for number in range(count)]
    await supervisor.start(ChildProcess(name=name, argv=argv, env=dict(os.environ)) for name in names)
    await supervisor.ready()
    try:
        yield
    finally:
        await supervisor.stop()


async def submit(sessions: Sessions, ledger: Ledger, services: str, *instructions: str) -> list[UUID]:
    async with sessions.begin() as session:
        project = await projects.create(session, "demo")
        await put_ledger(session, project.id, ledger, services)
        new = [(project.id, tasks.NewTask(instruction=text, use_skills=False)) for text in instructions]
        return [row.id for row in await tasks.submit_all(session, new)]


async def rows(sessions: Sessions) -> list[tables.Task]:
    async with sessions() as session:
        return list(await session.scalars(select(tables.Task).order_by(tables.Task.created_at)))


@pytest.mark.parametrize(("poison", "watchdog"), [pytest.param("burn", 5, marks=pytest.mark.slow), ("abort", 60)])
async def test_a_task_that_stops_its_runners_fails_and_those_beside_it_end(
    committed: Sessions, database_url: str, tmp_path: Path, poison: str, watchdog: int
) -> None:
    ledger = Ledger(pause=0.02)
    instructions = [f"write t{number} now" for number in range(INNOCENTS)]
    instructions.insert(2, f"write and {poison} now")

    async def ended() -> bool:
        return all(row.state not in (TaskState.ACCEPTED, TaskState.RUNNING) for row in await rows(committed))

    async with ledger.listening() as services:
        await submit(committed, ledger, services, *instructions)
        async with runner_processes(database_url, tmp_path, watchdog=watchdog):
            await until(ended)
            found = await rows(committed)
            logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))
    poisonous = found.pop(2)
    assert (poisonous.state, poisonous.stop, poisonous.deaths) == (TaskState.FAILED, Stop.CRASHED, 3)
    expected = "2 runners died while they executed this task and nothing else: given up after turn "
    assert expected in (poisonous.failure or "")
    assert {(row.state, row.stop) for row in found} <= {
        (TaskState.DONE, Stop.COMPLETED),
        (TaskState.DONE, Stop.IN_DOUBT),
    }
    assert any(row.deaths for row in found), "some ran beside it"
    given_up = next(line for line in logs.splitlines() if "a task is given up" in line)
    assert str(poisonous.id) in given_up
    assert "demo" in given_up
    assert ("in harm" in logs) == (poison == "burn"), "the watchdog says where it was"


async def test_a_task_whose_runners_are_killed_from_outside_ends_all_the_same(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger, killed = Ledger(), set[int]()

    async def runs_alone() -> bool:
        [row] = await rows(committed)
        live = {each.id: each.pid for each in await _live(committed)}
        pid = live.get((row.owner or "").partition("/")[0])
        if (not row.alone and killed) or pid is None or pid in killed:
            return False
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        return True

    async with ledger.listening() as services:
        await submit(committed, ledger, services, "write and linger now")
        async with runner_processes(database_url, tmp_path):
            for _ in range(4):
                await until(runs_alone)
            await until(lambda: _done(committed))
    [row] = await rows(committed)
    assert (row.state, row.stop, row.deaths) == (TaskState.DONE, Stop.COMPLETED, 4)


async def _done(sessions: Sessions) -> bool:
    return all(row.state not in (TaskState.ACCEPTED, TaskState.RUNNING) for row in await rows(sessions))


async def test_the_sandbox_of_a_dead_runner_ends_with_it(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    async with runner_processes(database_url, tmp_path, count=1):
        first = (await _live(committed))[0]
        family = descendants(first.pid)
        assert len(family) >= 1
        await submit(committed, Ledger(), "http://127.0.0.1:9", "write and burn now")
        await gone({first.pid} | family)
        assert not any(map(alive, family))


async def _live(sessions: Sessions) -> list[tables.RunnerProcess]:
    found: list[tables.RunnerProcess] = []

    async def reported() -> bool:
        async with sessions() as session:
            found[:] = await runners.live(session)
        return bool(found)

    await until(reported)
    await asyncio.sleep(0)
    return found
