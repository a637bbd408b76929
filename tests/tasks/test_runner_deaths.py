"""A runner that dies, is cut off or leaves: its tasks and shadows are resumed, and a harmful one is given up."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy.exc import TimeoutError as NoConnectionError

from app.agent.rollout import StopSignal
from app.base.values import Call, Stop
from app.db import results, tables
from app.db.tables import TaskState
from app.releases import store as releases
from app.releases import trials_store
from app.tasks import calls, queue, turns
from app.tasks import store as tasks
from app.tasks.journal import DatabaseContact
from app.tasks.runner import Runner, RunnerOptions
from tests.support.ledger_policies import Gated, Stuck, writing
from tests.support.ledger_project import OPTIONS, LedgerProject, until
from tests.support.rows import turn_of
from tests.support.scripted_engine import ScriptedEngine


async def test_a_runner_that_stops_hands_its_tasks_to_the_next(project: LedgerProject) -> None:
    stuck = Stuck(project.tokenizer)
    long_lease = RunnerOptions(lease_seconds=600, poll_seconds=0.05, grace_seconds=1)
    async with project.runner(stuck, long_lease):
        task_id = await project.submit()
        await until(lambda: stuck.pending == 1)
    row = await project.row(task_id)
    assert (row.state, row.owner) == (TaskState.RUNNING, None)
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing), long_lease):
        row = await project.ended(task_id)
    assert (row.stop, row.attempt) == (Stop.COMPLETED, 2)


async def test_a_rollout_whose_task_was_claimed_by_another_runner_is_dropped(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine) as runner:
        task_id = await project.submit()
        await until(lambda: engine.pending == 1)
        async with project.sessions.begin() as session:
            await session.merge(tables.Task(id=task_id, owner="another"))
        await until(lambda: runner.running == 0)
    row = await project.row(task_id)
    assert (row.state, row.owner) == (TaskState.RUNNING, "another")


async def test_a_task_that_killed_two_runners_fails_and_keeps_what_is_recorded(
    project: LedgerProject,
) -> None:
    task_id, lost = await project.submit(), Call(seq=0, turn=1, api="ledger.add_entry", arguments={"text": "x"})
    async with project.sessions.begin() as session:
        await queue.claim(session, "first", 30)
        await turns.begin(session, task_id, "first", 0, turn_of("one"))
        await turns.end(session, task_id, "first", 0, turn_of("one"))
        await turns.begin(session, task_id, "first", 1, turn_of("two"))
        await calls.begin(session, task_id, "first", lost, repeatable=False)
        await queue.abandon(session, "first")
        await queue.claim(session, "second", 30)
        await queue.mark_alone(session, task_id, "second")
        await queue.abandon(session, "second")
        await queue.claim(session, "third", 30)
        await queue.mark_alone(session, task_id, "third")
        await queue.abandon(session, "third")
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing), OPTIONS):
        row = await project.ended(task_id)
    assert (row.state, row.stop, row.turns, row.calls) == (TaskState.FAILED, Stop.CRASHED, 2, 1)
    assert row.failure is not None
    assert row.failure.startswith("2 runners died while they executed this task and nothing else")
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert [(turn.text, turn.outcome) for turn in trajectory.turns] == [("one", ""), ("two", "crashed")]
    assert [(call.api, call.error is None) for call in trajectory.calls] == [("ledger.add_entry", False)]
    assert project.ledger.entries == []


async def test_a_suspect_waits_for_the_tasks_under_way_and_nothing_starts_beside_it(
    project: LedgerProject,
) -> None:
    engine = Gated(project.tokenizer)
    async with project.runner(engine, OPTIONS) as runner:
        first = await project.submit("write first into the ledger")
        await until(lambda: engine.waiting == {"first"})
        suspect = await project.submit("write suspect into the ledger", deaths=1)
        await until(lambda: runner.running == 2)
        later = await project.submit("write later into the ledger")
        await asyncio.sleep(0.4)
        assert engine.waiting == {"first"}
        engine.open.add("first")
        await project.ended(first)
        await until(lambda: engine.waiting == {"suspect"})
        await asyncio.sleep(0.4)
        assert engine.waiting == {"suspect"}
        engine.open |= {"suspect", "later"}
        assert (await project.ended(suspect)).alone
        assert not (await project.ended(later)).alone


async def test_a_suspect_that_is_cancelled_waits_for_no_other_task(project: LedgerProject) -> None:
    engine = Gated(project.tokenizer)
    async with project.runner(engine, OPTIONS) as runner:
        await project.submit("write first into the ledger")
        await until(lambda: engine.waiting == {"first"})
        suspect = await project.submit("write suspect into the ledger", deaths=1)
        await until(lambda: runner.running == 2)
        async with project.sessions.begin() as session:
            assert (await tasks.request_cancel(session, suspect)).state == TaskState.RUNNING
        assert (await project.ended(suspect)).state == TaskState.CANCELLED
        await until(lambda: runner.running == 1)
        assert "first" in engine.waiting


@pytest.mark.parametrize("suspected", [False, True])
@pytest.mark.parametrize("noticed", ["renewing", "writing"])
async def test_a_runner_that_stalled_withdraws_the_death_that_was_counted(
    project: LedgerProject, suspected: bool, noticed: str
) -> None:
    """It executes the task alone if that is suspected; another task claimed by then would clear it."""
    engine = Gated(project.tokenizer)
    options = RunnerOptions(lease_seconds=3 if noticed == "renewing" else 600, poll_seconds=0.1)
    task_id = await project.submit("write once into the ledger", deaths=int(suspected))
    async with project.runner(engine, options) as runner:
        await until(lambda: engine.waiting == {"once"})
        async with project.sessions.begin() as session:  # in one transaction, so that no renewal comes between
            await session.merge(tables.Task(id=task_id, lease_until=datetime(2020, 1, 1, tzinfo=UTC)))
            await session.flush()
            claimed = await queue.claim(session, "another", 600)
        assert claimed is not None
        assert (claimed.deaths, claimed.lone_deaths) == (1 + suspected, int(suspected))
        if noticed == "writing":
            engine.open.add("once")
        await until(lambda: runner.running == 0)
        await until(lambda: row_is(project, task_id, (int(suspected), 0)))
    assert project.ledger.entries == []


async def row_is(project: LedgerProject, task_id: UUID, deaths: tuple[int, int]) -> bool:
    row = await project.row(task_id)
    return row.owner == "another" and (row.deaths, row.lone_deaths) == deaths


async def test_a_runner_that_abandons_its_tasks_counts_a_death_and_claims_nothing_more(
    project: LedgerProject,
) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine, OPTIONS) as runner:
        task_id = await project.submit()
        await until(lambda: engine.pending == 1)
        await runner.abandon()
        runner.wake()
        await until(lambda: runner.running == 0)
        await asyncio.sleep(1)
        row = await project.row(task_id)
        assert (row.owner, row.deaths, row.attempt) == (None, 1, 1)


async def test_a_runner_that_abandons_its_tasks_also_abandons_its_shadow_whose_attempt_counts(
    project: LedgerProject,
) -> None:
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing)):
        task_id = await project.submit()
        await project.ended(task_id)
    async with project.runner(Stuck(project.tokenizer), OPTIONS) as runner:
        async with project.sessions.begin() as session:
            release = await releases.propose(session, project.id, "f00d")
            await trials_store.add(session, release.id, [task_id])
            assert await trials_store.claim(session, runner.owner, 600) is not None
        await runner.abandon()
        async with project.sessions.begin() as session:
            again = await trials_store.claim(session, "another", 600)
            assert again is not None
            assert again.attempt == 2


async def test_a_task_that_was_dropped_is_resumed_soon_and_no_death_is_counted(project: LedgerProject) -> None:
    engine = ScriptedEngine(project.tokenizer, script=writing)
    executor = project.executor(engine)
    dropped: list[UUID] = []

    async def drop_once(row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
        if not dropped:
            dropped.append(row.id)
            raise NoConnectionError
        await executor.execute(row, owner, stop_signal)

    async with Runner(project.sessions, drop_once, RunnerOptions(lease_seconds=600, poll_seconds=0.1)):
        row = await project.ended(await project.submit())
    assert (row.state, row.deaths, dropped) == (TaskState.DONE, 0, [row.id])


async def test_leases_that_expired_during_an_outage_are_left_to_their_owners(project: LedgerProject) -> None:
    task_id = await project.submit()
    async with project.sessions.begin() as session:
        await queue.claim(session, "another", -1)
    options, now = RunnerOptions(lease_seconds=600, poll_seconds=0.05), 0.0
    runner = project.runner(ScriptedEngine(project.tokenizer, script=writing), options)
    contact = runner._contact = DatabaseContact(600, clock=lambda: now)
    async with runner:
        for now in (0.0, 150.0, 300.0, 450.0, 599.0):  # like after an outage, for less than a lease
            await until(lambda at=now: contact._latest == at)  # type: ignore[misc]
        await asyncio.sleep(0.2)
        assert (await project.row(task_id)).owner == "another"
        now = 600.0
        row = await project.ended(task_id)
    assert (row.state, row.deaths) == (TaskState.DONE, 1)
