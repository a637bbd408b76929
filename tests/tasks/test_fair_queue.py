"""Turns of projects in the queue: weights, priorities, limits, and claims at the same time."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import tables
from app.db.database import Sessions, autocommit
from app.projects import store as projects
from app.projects import usage
from app.projects.settings import Limits
from app.tasks import queue
from app.tasks import store as tasks
from tests.support.rows import LEASE, project_row, task_row

_FIVE_THOUSAND = """
INSERT INTO tasks (id, project_id, instruction, variables, use_skills, state, checked, turns, generated_tokens,
    calls, cancel_requested, attempt)
SELECT gen_random_uuid(), :project, 'wait', '{}', true, 'accepted', false, 0, 0, 0, false, 0
FROM generate_series(1, 5000)
"""


async def project_with(session: AsyncSession, count: int, settings: Mapping[str, Json] | None = None) -> UUID:
    """A project with that many tasks waiting."""
    project = await project_row(session)
    await projects.change_settings(session, project.id, settings or {})
    await tasks.submit_all(session, [(project.id, tasks.NewTask(instruction="wait"))] * count)
    return project.id


async def claim(session: AsyncSession, limits: Limits = queue.NO_LIMITS) -> tables.Task:
    task = await queue.claim(session, "me", LEASE, limits)
    assert task is not None
    return task


async def served(sessions: Sessions, runners: int, claims: int) -> Counter[UUID]:
    """How often each project was served by runners that claim at the same time."""

    async def run(owner: str) -> list[UUID]:
        mine = []
        for _ in range(claims // runners):
            async with autocommit(sessions) as session:
                task = await queue.claim(session, owner, LEASE)
            mine += [task.project_id] if task else []
        return mine

    found = await asyncio.gather(*(run(f"runner {number}") for number in range(runners)))
    return Counter(project_id for mine in found for project_id in mine)


async def test_runners_at_once_serve_projects_in_proportion_to_their_weights(committed: Sessions) -> None:
    async with committed.begin() as session:
        light = await project_with(session, 60)
        heavy = await project_with(session, 60, {"weight": 3})
    counts = await served(committed, 8, 64)
    assert counts.total() == 64
    assert abs(counts[light] - 16) <= 6
    assert abs(counts[heavy] - 48) <= 6


async def test_one_runner_alternates_by_weight_within_a_few_claims(session: AsyncSession) -> None:
    light = await project_with(session, 5)
    heavy = await project_with(session, 15, {"weight": 3})
    counts = Counter([(await claim(session)).project_id for _ in range(8)])
    assert counts == {light: 2, heavy: 6}


async def test_a_task_behind_5000_of_another_project_is_next_but_one(session: AsyncSession) -> None:
    crowd = await project_with(session, 1)
    await session.execute(text(_FIVE_THOUSAND), {"project": crowd})
    for _ in range(20):
        await claim(session)
    other = await project_with(session, 1)
    assert other in [(await claim(session)).project_id for _ in range(2)]


async def test_a_project_without_work_saves_up_no_turns(session: AsyncSession) -> None:
    rested = await project_with(session, 1)
    busy = await project_with(session, 30)
    for _ in range(21):
        await claim(session)
    await tasks.submit_all(session, [(rested, tasks.NewTask(instruction="wait"))] * 10)
    counts = Counter([(await claim(session)).project_id for _ in range(8)])
    assert 3 <= counts[busy] <= 4


async def test_a_light_project_is_not_starved_by_newcomers(session: AsyncSession) -> None:
    light = await project_with(session, 2, {"weight": 0.5})
    await project_with(session, 30)
    turns = []
    for _ in range(8):
        await project_with(session, 1)
        turns.append((await claim(session)).project_id)
        turns.append((await claim(session)).project_id)
    assert turns.count(light) == 2


async def test_higher_priority_goes_first_and_among_equals_the_oldest(session: AsyncSession) -> None:
    project = await project_row(session)
    given = {"old": 0, "urgent": 7, "new": 0, "whenever": -3, "urgent too": 7}
    for name, priority in given.items():
        await tasks.submit(session, project.id, tasks.NewTask(instruction=name, priority=priority))
    order = [(await claim(session)).instruction for _ in given]
    assert order == ["urgent", "urgent too", "old", "new", "whenever"]


async def test_priority_gives_a_project_no_more_turns(session: AsyncSession) -> None:
    first, second = await project_row(session), await project_row(session)
    for _ in range(4):
        await tasks.submit(session, first.id, tasks.NewTask(instruction="urgent", priority=100))
        await tasks.submit(session, second.id, tasks.NewTask(instruction="wait", priority=-100))
    counts = Counter([(await claim(session)).project_id for _ in range(4)])
    assert counts == {first.id: 2, second.id: 2}


async def test_runners_at_once_never_exceed_the_limit_of_running_tasks(committed: Sessions) -> None:
    async with committed.begin() as session:
        limited = await project_with(session, 40, {"limits": {"running_tasks": 5}})
        free = await project_with(session, 40)
    counts = await served(committed, 12, 48)
    assert counts[limited] == 5
    assert counts[free] == 40


async def test_the_servers_limit_holds_for_projects_without_one_of_their_own(session: AsyncSession) -> None:
    await project_with(session, 3)
    limits = Limits(running_tasks=1)
    task = await claim(session, limits)
    assert await queue.claim(session, "me", LEASE, limits) is None
    outcome = queue.TaskOutcome(state=tables.TaskState.DONE)
    assert await queue.finish(session, task.id, "me", outcome)
    assert await claim(session, limits)


async def test_tasks_of_a_project_over_its_daily_tokens_wait(session: AsyncSession) -> None:
    project_id = await project_with(session, 2, {"limits": {"tokens_per_day": 100}})
    task = await claim(session)
    outcome = queue.TaskOutcome(state=tables.TaskState.DONE, generated_tokens=100)
    await queue.finish(session, task.id, "me", outcome)
    assert await queue.claim(session, "me", LEASE) is None
    await session.execute(text("UPDATE project_usage SET day = day - 1"))
    assert (await claim(session)).project_id == project_id


async def test_an_interrupted_task_goes_first_and_counts_once(session: AsyncSession) -> None:
    first = await project_with(session, 3, {"limits": {"running_tasks": 1}})
    interrupted = await claim(session)
    await project_with(session, 3)
    await queue.hand_back(session, "me")
    turn = await session.scalar(text("SELECT turn FROM project_turns WHERE project_id = :id"), {"id": first})
    assert (await claim(session)).id == interrupted.id
    assert turn == await session.scalar(
        text("SELECT turn FROM project_turns WHERE project_id = :id"), {"id": first}
    )


async def test_a_claim_passes_over_a_project_that_another_claim_has_locked(committed: Sessions) -> None:
    async with committed.begin() as session:
        waiting = {await project_with(session, 2), await project_with(session, 2)}
    async with committed.begin() as one, committed.begin() as two:
        assert {(await claim(one)).project_id, (await claim(two)).project_id} == waiting


async def test_a_task_whose_row_is_locked_is_passed_over(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        first, second = [(await task_row(session, project.id)).id for _ in range(2)]
    async with committed.begin() as one, committed.begin() as two:
        await tasks.request_cancel(one, first)
        assert (await claim(two)).id == second


async def test_usage_is_counted_when_tasks_end_however_they_end(session: AsyncSession) -> None:
    project_id = await project_with(session, 3)
    for state, tokens in ((tables.TaskState.DONE, 30), (tables.TaskState.FAILED, 0)):
        task = await claim(session)
        outcome = queue.TaskOutcome(state=state, turns=2, generated_tokens=tokens, calls=4)
        await queue.finish(session, task.id, "me", outcome)
    [waiting] = (await tasks.page(session, tasks.TaskFilter(state=tables.TaskState.ACCEPTED))).items
    await tasks.request_cancel(session, waiting.id)
    [today] = await usage.of_days(session, project_id, 30)
    assert (today.done, today.failed, today.cancelled) == (1, 1, 1)
    assert (today.turns, today.generated_tokens, today.calls) == (4, 30, 8)


async def test_a_claim_reads_no_more_of_a_long_queue_than_of_a_short_one(session: AsyncSession) -> None:
    project_id = await project_with(session, 1)
    for _ in range(2):
        await session.execute(text(_FIVE_THOUSAND), {"project": project_id})
    await session.execute(text("ANALYZE tasks"))
    connection = await session.connection()
    statement = queue._claiming(LEASE, queue.NO_LIMITS, True, 0)
    compiled = statement.compile(dialect=connection.dialect)
    given = compiled.params | {"new_owner": "me/1", "new_process": "me", "ours": [], "held_off": []}
    explained = await connection.exec_driver_sql(f"EXPLAIN {compiled}", given)
    plan = "\n".join(line for [line] in explained)
    assert "ix_tasks_waiting" in plan
    assert "Seq Scan on tasks" not in plan
