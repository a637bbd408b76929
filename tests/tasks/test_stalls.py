"""Runner processes that are stopped for longer than a lease, and go on: nothing is done twice."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select

from app.base.values import Stop
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import TASK_END_STATES, TaskState
from app.projects import store as projects
from app.tasks import calls, queue
from app.tasks import store as tasks
from tests.support.ledger import Ledger
from tests.support.ledger_project import put_ledger, until

WRITES = 5


@asynccontextmanager
async def runner(
    module: str, database_url: str, directory: Path, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", f"tests.support.{module}", database_url, str(directory / module), *options)
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def is_stopped(process: asyncio.subprocess.Process) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def submit(sessions: Sessions, project_id: UUID, word: str) -> UUID:
    async with sessions.begin() as session:
        new = tasks.NewTask(instruction=f"write {word} now", use_skills=False)
        return (await tasks.submit(session, project_id, new)).id


async def open_project(sessions: Sessions, ledger: Ledger, server: str) -> UUID:
    async with sessions.begin() as session:
        project = await projects.create(session, "demo")
        await put_ledger(session, project.id, ledger, server)
        return project.id


async def ended(sessions: Sessions, task_id: UUID) -> tables.Task:
    async def has_ended() -> bool:
        async with sessions() as session:
            return (await tasks.get(session, task_id)).state in TASK_END_STATES

    await until(has_ended)
    async with sessions() as session:
        return await tasks.get(session, task_id)


async def lease_expired(sessions: Sessions, task_id: UUID) -> bool:
    expired = select(tables.Task.lease_until < func.clock_timestamp()).where(tables.Task.id == task_id)
    async with sessions() as session:
        return bool(await session.scalar(expired))


def written(ledger: Ledger) -> Counter[str]:
    return Counter(entry.text.split()[0] for entry in ledger.entries)


@pytest.mark.parametrize(
    ("moment", "elsewhere"),
    [
        pytest.param("", False, marks=pytest.mark.slow),
        ("committed", False),
        pytest.param("committed", True, marks=pytest.mark.slow),
        ("sent", False),
    ],
)
async def test_a_stalled_runner_sends_and_reports_nothing_of_a_task_that_has_ended_meanwhile(
    committed: Sessions, database_url: str, tmp_path: Path, moment: str, elsewhere: bool
) -> None:
    """A runner of another machine cannot know that a call which was committed was not sent."""
    sent = moment == "sent"
    doubt = sent or elsewhere
    ledger, module = Ledger(pause=0.5 if sent else 0), "runner_process" if sent else "stopping_runner"
    async with (
        ledger.listening() as server,
        runner(module, database_url, tmp_path, *([moment] if moment == "committed" else [])) as stalled,
    ):
        project_id = await open_project(committed, ledger, server)
        task_id = await submit(committed, project_id, "first")
        if sent:
            await until(lambda: len(ledger.entries) == 1)
            stalled.send_signal(signal.SIGSTOP)
        await until(lambda: is_stopped(stalled))
        async with runner("runner_process", database_url, tmp_path / "elsewhere" if elsewhere else tmp_path):
            row = await ended(committed, task_id)
        stalled.send_signal(signal.SIGCONT)
        await ended(committed, await submit(committed, project_id, "second"))
    assert (row.stop, row.attempt) == (Stop.IN_DOUBT if doubt else Stop.COMPLETED, 2)
    assert ("its runner died or stalled" in (row.failure or "")) == doubt
    assert written(ledger) == Counter(first=int(sent) if doubt else WRITES, second=WRITES)
    async with committed() as session:
        assert (await results.after(session, task_id))[-1].kind == "done"


async def test_a_call_that_a_killed_runner_had_not_sent_is_made_by_the_next_one(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    async with (
        ledger.listening() as server,
        runner("stopping_runner", database_url, tmp_path, "committed") as killed,
    ):
        project_id = await open_project(committed, ledger, server)
        task_id = await submit(committed, project_id, "only")
        await until(lambda: is_stopped(killed))
        killed.kill()
        async with runner("runner_process", database_url, tmp_path):
            row = await ended(committed, task_id)
    assert (row.stop, row.deaths, written(ledger)) == (Stop.COMPLETED, 1, Counter(only=WRITES))


async def test_a_runner_that_wakes_up_without_its_claim_tells_the_next_one_what_it_had_not_sent(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    async with (
        ledger.listening() as server,
        runner("stopping_runner", database_url, tmp_path, "committed") as stalled,
    ):
        project_id = await open_project(committed, ledger, server)
        task_id = await submit(committed, project_id, "first")
        await until(lambda: is_stopped(stalled))
        await until(lambda: lease_expired(committed, task_id))
        async with committed.begin() as session:
            assert await queue.claim(session, "next/1", 60) is not None
            [begun] = await calls.of_task(session, task_id)
        assert begun.call is None
        stalled.send_signal(signal.SIGCONT)
        await until(lambda: _without_calls(committed, task_id))
        async with committed.begin() as session:
            await queue.put_back(session, task_id, "next/1")
        row = await ended(committed, task_id)
    assert row.stop == Stop.COMPLETED
    assert written(ledger) == Counter(first=WRITES)


async def _without_calls(sessions: Sessions, task_id: UUID) -> bool:
    async with sessions() as session:
        return await calls.of_task(session, task_id) == []


async def test_a_runner_that_is_stopped_while_it_renews_a_lease_keeps_nobody_from_the_task(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    async with (
        ledger.listening() as server,
        runner("stopping_runner", database_url, tmp_path, "renewing") as stalled,
    ):
        project_id = await open_project(committed, ledger, server)
        task_id = await submit(committed, project_id, "first")
        await until(lambda: is_stopped(stalled))
        async with runner("runner_process", database_url, tmp_path):
            row = await ended(committed, task_id)
        stalled.send_signal(signal.SIGCONT)
        await ended(committed, await submit(committed, project_id, "second"))
    assert row.attempt == 2
    assert written(ledger)["second"] == WRITES
    assert len({entry.text for entry in ledger.entries}) == len(ledger.entries), "nothing is done twice"


async def test_a_runner_whose_lease_expired_while_it_was_stopped_goes_on_with_the_same_rollout(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    async with (
        ledger.listening() as server,
        runner("stopping_runner", database_url, tmp_path) as stalled,
    ):
        project_id = await open_project(committed, ledger, server)
        task_id = await submit(committed, project_id, "only")
        await until(lambda: is_stopped(stalled))
        await until(lambda: lease_expired(committed, task_id))
        stalled.send_signal(signal.SIGCONT)
        row = await ended(committed, task_id)
    assert (row.state, row.stop, row.attempt, row.deaths) == (TaskState.DONE, Stop.COMPLETED, 1, 0)
    assert written(ledger) == Counter(only=WRITES)
