"""Training data: the window of tasks, their trajectories and skills."""

from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.tables import SkillState, TaskState
from app.runs import experience
from tests.support.rows import project_row, task_row
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject, minute


@pytest.fixture
async def served(session: AsyncSession, tmp_path: Path) -> ServedProject:
    return ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))


async def test_a_window_begins_at_since_and_ends_before_until_oldest_first(served: ServedProject) -> None:
    tasks = [await served.task() for _ in range(4)]  # the first ends in minute 1
    found = await experience.window(served.session, served.project.id, since=minute(2), until=minute(4))
    assert [row.id for row in found] == [tasks[1].id, tasks[2].id]


async def test_beyond_the_limit_only_the_newest_tasks_are_read(served: ServedProject) -> None:
    tasks = [await served.task() for _ in range(3)]
    found = await experience.window(served.session, served.project.id, limit=2)
    assert [row.id for row in found] == [tasks[1].id, tasks[2].id]


async def test_tasks_that_have_not_ended_or_are_of_another_project_are_not_read(served: ServedProject) -> None:
    await task_row(served.session, served.project.id)
    other = ServedProject(served.session, await project_row(served.session), served.tokenizer)
    await other.task()
    assert await experience.window(served.session, served.project.id) == []


async def test_a_task_is_read_with_its_result_and_the_base_of_its_adapter(served: ServedProject) -> None:
    plain = await served.task(0.5, state=TaskState.CANCELLED)
    served.session.add(tables.Adapter(hash="abc", base="seed", rank=4))
    release = await served.release("abc")
    await served.task()
    first, second = await experience.window(served.session, served.project.id)
    assert (first.id, first.state, first.score, first.started_at) == (plain.id, "cancelled", 0.5, minute(0))
    assert (first.base, second.base, second.release_id) == (None, "seed", release.id)


async def test_trajectories_are_read_in_the_given_order_without_tasks_that_have_none(
    served: ServedProject,
) -> None:
    first, second, without = (
        await served.task(),
        await served.task(),
        await task_row(served.session, served.project.id),
    )
    ids = [second.id, without.id, first.id]
    found = [trajectory.task.id async for trajectory in experience.trajectories(served.session, ids)]
    assert found == [second.id, first.id]


async def test_more_trajectories_than_one_query_takes_are_all_read(served: ServedProject) -> None:
    task = await served.task()
    ids = [task.id, *[served.project.id] * 199, task.id]
    assert len([each async for each in experience.trajectories(served.session, ids)]) == 2


async def test_skills_are_found_by_the_task_that_wrote_them_and_by_id(served: ServedProject) -> None:
    maker, other = await served.task(), await served.task()
    made = await served.skill(maker, "greet", slots=["iris"])
    named, _ = await served.skill(other, "wave"), await served.skill(other, "nod")
    found = await experience.skills(served.session, served.project.id, made_by=[maker.id], ids={named.id})
    assert [skill.id for skill in found] == [made.id, named.id]
    first = found[0]
    assert (first.task_id, first.state, first.source, first.slots) == (
        maker.id,
        SkillState.ACTIVE,
        made.source,
        ["iris"],
    )
    assert await experience.skills(served.session, served.project.id, made_by=[], ids=[]) == []


async def test_a_superseded_version_is_found_and_another_projects_skill_is_not(served: ServedProject) -> None:
    maker = await served.task()
    former = await served.skill(maker)
    await served.skill(maker, source="def greet(): ...")
    other = ServedProject(served.session, await project_row(served.session), served.tokenizer)
    foreign = await other.skill(await other.task())
    found = await experience.skills(served.session, served.project.id, made_by=[], ids=[former.id, foreign.id])
    assert [(skill.id, skill.state) for skill in found] == [(former.id, SkillState.SUPERSEDED)]
