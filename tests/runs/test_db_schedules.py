"""Schedules: when they fire, that they fire once, and what they wait for."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError, NotFoundError
from app.base.run_settings import RunKind, RunSettings, read_settings
from app.base.values import ScoreSource
from app.db import results, tables
from app.db.database import Sessions
from app.db.queries import from_now
from app.db.tables import ReleaseState, RunState, TaskState
from app.releases import store as releases
from app.runs import schedule as schedules
from app.runs import store as runs
from app.runs.schedule import ScheduleRequest
from app.tasks import queue
from tests.support.rows import LEASE, project_row, task_row
from trainer.worker.launcher import fire_schedules

SETTINGS = RunSettings(kind=RunKind.LOGGED, steps=3)
DAILY = ScheduleRequest(every_hours=24, settings=SETTINGS)


async def scored_tasks(session: AsyncSession, project_id: UUID, count: int) -> None:
    for _ in range(count):
        await task_row(session, project_id)
        task = await queue.claim(session, "me", LEASE)
        assert task is not None
        await queue.finish(session, task.id, "me", queue.TaskOutcome(state=TaskState.DONE, score=1.0))


async def judged_tasks(session: AsyncSession, project_id: UUID, count: int) -> list[UUID]:
    rows = [await task_row(session, project_id) for _ in range(count)]
    for row in rows:
        await results.give(session, row.id, 1.0, ScoreSource.JUDGE, judged_by="wise")
    return [row.id for row in rows]


async def overdue(session: AsyncSession, schedule: tables.Schedule, hours: float = 1) -> None:
    """Move the due time so many hours into the past."""
    mine = update(tables.Schedule).where(tables.Schedule.id == schedule.id)
    await session.execute(mine.values(next_at=from_now(-hours * 3600)))


async def end_runs(session: AsyncSession) -> None:
    await session.execute(update(tables.TrainingRun).values(state=RunState.DONE))


async def test_a_schedule_fires_once_when_it_is_due(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    schedule = await schedules.put(session, project.id, DAILY)
    assert await schedules.tick(session) == []
    await overdue(session, schedule, hours=1)
    [run_id] = await schedules.tick(session)
    run = await runs.get(session, run_id)
    assert (run.project_id, run.schedule_id, run.state) == (project.id, schedule.id, RunState.QUEUED)
    assert read_settings(run.settings) == SETTINGS
    await end_runs(session)
    assert await schedules.tick(session) == []
    fired = await schedules.get(session, project.id)
    assert fired.next_at is not None
    assert timedelta(hours=22.9) < fired.next_at - datetime.now(UTC) < timedelta(hours=23.1)


async def test_missed_times_are_made_up_for_by_one_run(session: AsyncSession) -> None:
    schedule = await schedules.put(session, (await project_row(session)).id, DAILY)
    await overdue(session, schedule, hours=24 * 30)
    assert len(await schedules.tick(session)) == 1
    await end_runs(session)
    assert await schedules.tick(session) == []


async def test_a_schedule_fires_after_so_many_new_scored_tasks(session: AsyncSession) -> None:
    project, other = await project_row(session), await project_row(session)
    await schedules.put(session, project.id, ScheduleRequest(every_scored_tasks=3))
    await scored_tasks(session, other.id, 3)
    await scored_tasks(session, project.id, 2)
    await task_row(session, project.id)
    assert await schedules.tick(session) == [], "neither another project's tasks nor unscored ones count"
    await scored_tasks(session, project.id, 1)
    assert len(await schedules.tick(session)) == 1
    await end_runs(session)
    await scored_tasks(session, project.id, 2)
    assert await schedules.tick(session) == []
    await scored_tasks(session, project.id, 1)
    assert len(await schedules.tick(session)) == 1


async def test_what_only_a_judge_scored_lets_no_schedule_fire(session: AsyncSession) -> None:
    project = await project_row(session)
    await schedules.put(session, project.id, ScheduleRequest(every_scored_tasks=3))
    judged = await judged_tasks(session, project.id, 5)
    assert await schedules.tick(session) == []
    for task_id in judged[:3]:
        await results.give(session, task_id, 0.0, ScoreSource.PERSON)
    assert len(await schedules.tick(session)) == 1


async def only_index(session: AsyncSession, name: str) -> None:
    """Leave the planner no other way in this transaction: what it chooses depends on what is in the table."""
    every = text("SELECT indexname FROM pg_indexes WHERE tablename = 'tasks' AND indexname LIKE 'ix_%'")
    unique = text("SELECT conname FROM pg_constraint WHERE conrelid = 'tasks'::regclass AND contype = 'u'")
    for constraint in (await session.scalars(unique)).all():
        await session.execute(text(f"ALTER TABLE tasks DROP CONSTRAINT {constraint} CASCADE"))
    for other in (await session.scalars(every)).all():
        if other != name:
            await session.execute(text(f"DROP INDEX {other}"))
    for kind in ("seqscan", "bitmapscan"):
        await session.execute(text(f"SET LOCAL enable_{kind} = off"))


async def test_scored_tasks_are_counted_in_an_index(session: AsyncSession) -> None:
    await schedules.put(session, (await project_row(session)).id, ScheduleRequest(every_scored_tasks=3))
    connection = await session.connection()
    statements: list[tuple[str, Any]] = []
    event.listen(
        connection.sync_connection, "before_cursor_execute", lambda *given: statements.append((given[2], given[3]))
    )
    await schedules.tick(session)
    await only_index(session, "ix_tasks_scored")
    [(statement, values)] = [each for each in statements if "FROM schedules" in each[0]]
    plan = "\n".join((await connection.exec_driver_sql(f"EXPLAIN {statement}", values)).scalars())
    assert "Index Only Scan using ix_tasks_scored on tasks" in plan


async def test_a_schedule_fires_by_hours_or_tasks_whichever_comes_first_and_resets_both(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    await schedules.put(session, project.id, ScheduleRequest(every_hours=2, every_scored_tasks=2))
    await scored_tasks(session, project.id, 2)
    assert len(await schedules.tick(session)) == 1
    fired = await schedules.get(session, project.id)
    assert (fired.scored_seen, fired.rev) == (2, 1)
    assert fired.next_at is not None
    assert fired.fired_at is not None
    assert fired.next_at - fired.fired_at == timedelta(hours=2)


async def test_a_schedule_waits_for_the_end_of_its_last_run(session: AsyncSession) -> None:
    schedule = await schedules.put(session, (await project_row(session)).id, DAILY)
    await overdue(session, schedule)
    [run_id] = await schedules.tick(session)
    for _ in range(2):
        await overdue(session, schedule)
        assert await schedules.tick(session) == []
        await runs.claim(session, "me", LEASE, run_id)
    await runs.finish(session, run_id, "me", RunState.FAILED, failure="InvalidError: no data")
    assert len(await schedules.tick(session)) == 1


@pytest.mark.parametrize("state", [ReleaseState.PASSED, ReleaseState.CANARY])
async def test_a_schedule_waits_for_the_end_of_a_trial(session: AsyncSession, state: ReleaseState) -> None:
    """Else what its run makes would be compared with weights that serve no more by its turn."""
    project, other = await project_row(session), await project_row(session)
    for each in (project, other):
        await schedules.put(session, each.id, ScheduleRequest(every_scored_tasks=2))
        await scored_tasks(session, each.id, 3)
    tried = await releases.propose(session, project.id, "f00d")
    tried.state = state
    await session.flush()
    [run_id] = await schedules.tick(session)
    assert (await runs.get(session, run_id)).project_id == other.id
    waiting = await schedules.progress(session, await schedules.get(session, project.id))
    assert (waiting.scored_tasks, waiting.waits_for_release) == (3, tried.number)
    tried.state = ReleaseState.CANDIDATE
    await session.flush()
    assert len(await schedules.tick(session)) == 1
    begun = await schedules.progress(session, await schedules.get(session, project.id))
    assert (begun.scored_tasks, begun.waits_for_release) == (0, None)


async def test_a_disabled_schedule_does_not_fire(session: AsyncSession) -> None:
    project = await project_row(session)
    schedule = await schedules.put(session, project.id, ScheduleRequest(every_hours=1, enabled=False))
    await overdue(session, schedule)
    assert await schedules.tick(session) == []


async def test_of_three_concurrent_callers_one_fires(committed: Sessions) -> None:
    async with committed.begin() as session:
        made = [await schedules.put(session, (await project_row(session)).id, DAILY) for _ in range(4)]

    async def tick() -> list[UUID]:
        async with committed.begin() as session:
            return await schedules.tick(session)

    for fires in range(1, 6):
        async with committed.begin() as session:
            await end_runs(session)
            for schedule in made:
                await overdue(session, schedule)
        fired = [run_id for each in await asyncio.gather(tick(), tick(), tick()) for run_id in each]
        assert len(fired) == len(set(fired)) == 4
        async with committed() as session:
            assert await session.scalar(select(func.count()).select_from(tables.TrainingRun)) == 4 * fires


async def test_a_process_that_dies_before_its_commit_has_not_fired(committed: Sessions) -> None:
    async with committed.begin() as session:
        schedule = await schedules.put(session, (await project_row(session)).id, DAILY)
        await overdue(session, schedule)
    async with committed() as dying:
        assert len(await schedules.tick(dying)) == 1
        await dying.rollback()
    async with committed.begin() as session:
        assert len(await schedules.tick(session)) == 1


async def test_an_edited_schedule_keeps_its_due_time_unless_the_interval_changes(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await schedules.put(session, project.id, DAILY)
    at = first.next_at
    again = await schedules.put(session, project.id, ScheduleRequest(every_hours=24, every_scored_tasks=5))
    assert (again.id, again.next_at, again.every_scored_tasks) == (first.id, at, 5)
    quicker = await schedules.put(session, project.id, ScheduleRequest(every_hours=1))
    assert quicker.next_at is not None
    assert at is not None
    assert quicker.next_at < at
    assert (quicker.every_hours, quicker.every_scored_tasks) == (1, None)


async def test_a_schedule_that_is_edited_meanwhile_does_not_fire(committed: Sessions) -> None:
    async with committed.begin() as session:
        schedule = await schedules.put(session, (await project_row(session)).id, DAILY)
        await overdue(session, schedule)
    async with committed() as editing, committed.begin() as ticking:
        await schedules.put(editing, schedule.project_id, ScheduleRequest(every_hours=24, enabled=False))
        ticked = asyncio.create_task(schedules.tick(ticking))
        await asyncio.sleep(0.1)
        await editing.commit()
        assert await ticked == []


async def test_a_removed_schedule_leaves_its_runs(session: AsyncSession) -> None:
    project = await project_row(session)
    schedule = await schedules.put(session, project.id, DAILY)
    await overdue(session, schedule)
    [run_id] = await schedules.tick(session)
    await schedules.remove(session, project.id)
    assert (await runs.get(session, run_id)).schedule_id is None
    for gone in (schedules.get(session, project.id), schedules.remove(session, project.id)):
        with pytest.raises(NotFoundError, match="no schedule"):
            await gone


@pytest.mark.parametrize(
    "odd",
    [
        ScheduleRequest(),
        ScheduleRequest(every_hours=0),
        ScheduleRequest(every_hours=-1),
        ScheduleRequest(every_hours=float("nan")),
        ScheduleRequest(every_hours=1e9),
        ScheduleRequest(every_scored_tasks=0),
        ScheduleRequest(every_hours=1, every_scored_tasks=-5),
    ],
)
async def test_an_interval_out_of_range_is_refused(session: AsyncSession, odd: ScheduleRequest) -> None:
    project = await project_row(session)
    with pytest.raises(InvalidError, match=r"every_hours|every_scored_tasks"):
        await schedules.put(session, project.id, odd)


async def test_a_long_count_of_scored_tasks_is_followed_by_a_rest(committed: Sessions) -> None:
    assert await fire_schedules(committed, 600.0) == 600.0
    async with committed() as session:
        await session.execute(text("LOCK TABLE schedules"))
        firing = asyncio.create_task(fire_schedules(committed, 0.1))
        await asyncio.sleep(0.5)
        await session.rollback()
    assert await firing > 0.4 * 20
