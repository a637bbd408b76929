"""Tasks from the queue to their end, with a real database, sandbox and API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.rollout import RolloutLimits, StopSignal
from app.base.errors import INTERNAL_ERROR
from app.base.values import Stop
from app.db import lease, results, tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.sandbox.protocol import SessionLimits
from app.skills import offers
from app.skills import store as skills
from app.tasks import execution, queue
from app.tasks import store as tasks
from app.tasks.runner import Runner, RunnerOptions
from tests.support.ledger_policies import Stuck, writing
from tests.support.ledger_project import OPTIONS, LedgerProject, until
from tests.support.scripted_engine import ScriptedEngine, block
from tests.support.single_connection import single_connection


async def test_a_task_ends_though_its_rollout_and_the_record_of_it_fail(
    project: LedgerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise AttributeError("an error of ours")

    monkeypatch.setattr(execution, "task_of", broken)
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing)):
        row = await project.ended(await project.submit())
    assert (row.state, row.stop, row.failure) == (TaskState.FAILED, None, INTERNAL_ERROR)
    assert [kind for kind, _ in await project.events(row.id)] == ["done"]


async def test_a_finished_task_has_a_trajectory_and_its_events(project: LedgerProject) -> None:
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with project.runner(engine) as runner:
        task_id = await project.submit()
        runner.wake()
        row = await project.ended(task_id)
    assert (row.state, row.stop, row.failure, row.turns, row.calls) == (
        TaskState.DONE,
        Stop.COMPLETED,
        None,
        2,
        1,
    )
    assert row.release_id is not None
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert trajectory.policy.release == row.release_id
    assert row.generated_tokens == trajectory.generated_tokens > 0
    recorded = await project.events(task_id)
    assert [kind for kind, _ in recorded] == [
        "turn",
        "call",
        "observation",
        "turn",
        "observation",
        "skill",
        "done",
    ]
    assert recorded[1][1]["api"] == "ledger.add_entry"
    assert recorded[2][1]["text"] == "1"
    assert recorded[-1][1]["stop_reason"] == "completed"


async def test_the_next_task_uses_the_skill_that_the_first_one_wrote(project: LedgerProject) -> None:
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing)):
        first = await project.submit("write hello into the ledger")
        await project.ended(first)
        second = await project.submit("write goodbye into the ledger")
        await project.ended(second)
        without = await project.submit("write nothing into the ledger", use_skills=False)
        await project.ended(without)
    async with project.sessions() as session:
        [made] = await skills.made_by(session, first)
        [(offer, skill)] = await offers.to_task(session, second)
        assert await offers.to_task(session, without) == []
    assert (made.name, made.apis, skill.id) == ("write_entry", ["ledger.add_entry"], made.id)
    assert (offer.calls, offer.returned) == (1, 1)
    assert [entry.text for entry in project.ledger.entries] == ["hello", "goodbye", "nothing"]
    recorded = [data["status"] for kind, data in await project.events(second) if kind == "skill"]
    assert recorded == ["offered", "used"]


async def test_a_task_waits_for_a_busy_api_longer_than_code_may_run(project: LedgerProject) -> None:
    def script(_prompt: str, _turn: int) -> str:
        return block("apis.supervisor.complete_task(answer=apis.ledger.list_entries())")

    project.ledger.busy_seconds = 6
    limits = RolloutLimits(turns=1, session=SessionLimits(wall_seconds=5))
    async with project.runner(ScriptedEngine(project.tokenizer, script=script), limits=limits):
        row = await project.ended(await project.submit())
    assert (row.state, row.stop, row.answer) == (TaskState.DONE, Stop.COMPLETED, [])
    assert project.ledger.reads == 2


async def test_a_cancelled_task_stops(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine):
        task_id = await project.submit()
        await until(lambda: engine.pending == 1)
        async with project.sessions.begin() as session:
            await session.merge(tables.Task(id=task_id, cancel_requested=True))
        row = await project.ended(task_id)
    assert (row.state, row.stop, engine.pending) == (TaskState.CANCELLED, Stop.CANCELLED, 0)


async def test_a_task_that_was_to_be_cancelled_when_it_is_claimed_begins_so(project: LedgerProject) -> None:
    begun = list[bool]()

    async def execute(_row: tables.Task, _claim: str, stop_signal: StopSignal) -> None:
        begun.append(stop_signal.cancelled)

    task_id = await project.submit()
    async with project.sessions.begin() as session:
        await queue.claim(session, "dead", 30)
        assert (await tasks.request_cancel(session, task_id)).state == TaskState.RUNNING
        await queue.abandon(session, "dead")
    async with Runner(project.sessions, execute, OPTIONS):
        await until(lambda: bool(begun))
    assert begun[0]


async def test_no_more_tasks_run_concurrently_than_allowed(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(
        engine, RunnerOptions(concurrency=2, poll_seconds=0.05, grace_seconds=0.2)
    ) as runner:
        for _ in range(4):
            await project.submit()
        await until(lambda: engine.pending == 2)
        await asyncio.sleep(0.3)
        assert (engine.pending, runner.running) == (2, 2)


async def test_the_lease_of_a_running_task_is_renewed(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine, RunnerOptions(lease_seconds=6, poll_seconds=0.05, grace_seconds=0.2)):
        task_id = await project.submit()
        await until(lambda: engine.pending == 1)
        first = (await project.row(task_id)).lease_until
        assert first is not None
        await until(lambda: datetime.now(UTC) > first)
        async with project.sessions.begin() as session:
            assert await queue.claim(session, "another", 1) is None
        assert (await project.row(task_id)).attempt == 1


async def test_a_rollout_that_has_suspended_its_task_may_go_on_to_its_end(project: LedgerProject) -> None:
    ended = asyncio.Event()

    async def execute(row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
        stop_signal.released = True
        async with project.sessions.begin() as session:
            assert await lease.suspend(session, row.id, owner)
        await asyncio.sleep(1)
        ended.set()

    options = RunnerOptions(lease_seconds=0.6, poll_seconds=0.05)
    async with Runner(project.sessions, execute, options):
        await project.submit()
        await ended.wait()


class LateAnswers:
    """Sessions of which the database tells late that a transaction was committed."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self.kw = sessions, sessions.kw

    def __call__(self, **options: Any) -> AsyncSession:
        return self._sessions(**options)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncSession]:
        async with self._sessions.begin() as session:
            yield session
        await asyncio.sleep(1)


@pytest.mark.parametrize("ending", ["completed", "condemned"])
async def test_a_task_that_ends_while_leases_are_renewed_is_not_taken_for_lost(
    project: LedgerProject, ending: str
) -> None:
    lost = REGISTRY.get_sample_value("sage_task_leases_lost_total")
    executor = project.executor(ScriptedEngine(project.tokenizer, script=writing))
    late: Any = LateAnswers(project.sessions)
    task_id = await project.submit(deaths=3)
    if ending == "condemned":
        async with project.sessions.begin() as session:
            await session.merge(tables.Task(id=task_id, lone_deaths=9))
    ended = asyncio.Event()

    async def execute(*task: Any) -> None:
        try:
            await replace(executor, sessions=late).execute(*task)
        finally:
            ended.set()

    async with Runner(project.sessions, execute, RunnerOptions(lease_seconds=0.9, poll_seconds=0.05)):
        await ended.wait()
        await asyncio.sleep(0.3)
    row = await project.row(task_id)
    assert (row.state, row.deaths) == (TaskState.DONE if ending == "completed" else TaskState.FAILED, 3)
    assert REGISTRY.get_sample_value("sage_task_leases_lost_total") == lost


async def test_a_runner_recovers_after_a_while_without_a_connection(
    project: LedgerProject, database_url: str
) -> None:
    engine = Stuck(project.tokenizer)
    async with (
        single_connection(database_url) as database,
        Runner(database.sessions, project.executor(engine).execute, OPTIONS) as runner,
    ):
        first = await project.submit()
        await until(lambda: engine.pending == 1)
        async with database.starved():
            await asyncio.sleep(1.5)
        await project.submit()
        runner.wake()
        await until(lambda: engine.pending == 2)
        async with project.sessions.begin() as session:
            await session.merge(tables.Task(id=first, cancel_requested=True))
        assert (await project.ended(first)).state == TaskState.CANCELLED


async def test_a_defect_while_claiming_does_not_end_the_claim_loop(project: LedgerProject) -> None:
    class Broken:
        """Sessions of which the first raises a defect."""

        def __init__(self) -> None:
            self.opened = 0

        def begin(self) -> Any:
            return project.sessions.begin()

        def __call__(self) -> Any:
            self.opened += 1
            if self.opened == 1:  # the first claim
                raise ZeroDivisionError
            return project.sessions()

    sessions: Any = Broken()
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with Runner(sessions, project.executor(engine).execute, OPTIONS):
        assert (await project.ended(await project.submit())).state == TaskState.DONE
    assert sessions.opened > 1


async def test_a_runner_that_is_woken_while_it_stops_ends(project: LedgerProject) -> None:
    """At many delays: being woken must not make it forget that it was cancelled."""
    for delay in range(40):
        async with project.runner(ScriptedEngine(project.tokenizer, script=writing)) as runner:
            for _ in range(delay):
                await asyncio.sleep(0)
            await asyncio.sleep(0.01)
            runner.wake()
