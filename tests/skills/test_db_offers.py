"""Offers of skills: edges from the task that wrote a skill to the tasks that used it."""

from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Offer, Stop, Use
from app.db import tables
from app.db.tables import TaskState
from app.skills import offers
from app.skills import store as skills
from app.skills.offers import SkillStats
from app.tasks import feedback, queue
from tests.support.rows import LEASE, new_skill, offer_of, project_row, task_row, trajectory_of, turn_of


async def _skill(session: AsyncSession, project_id: UUID, name: str = "greet") -> tables.Skill:
    maker = await task_row(session, project_id, "greet iris")
    await queue.claim(session, "me", LEASE)
    return await skills.add(session, project_id, new_skill(name, task_id=maker.id))


async def _claimed(session: AsyncSession, project_id: UUID) -> tables.Task:
    task = await task_row(session, project_id, "greet omar")
    await queue.claim(session, "me", LEASE)
    return task


async def _offer(session: AsyncSession, task: tables.Task, *offered: Offer) -> None:
    await offers.record_held(session, task.id, "me", offered, [], {})


async def _using_task(
    session: AsyncSession, skill: tables.Skill, *, returned: int, stop: Stop = Stop.COMPLETED
) -> tables.Task:
    """A finished task that was offered the skill and called it twice."""
    task = await _claimed(session, skill.project_id)
    offer = offer_of(skill)
    await _offer(session, task, offer)
    use = Use(function=skill.name, inherited=True, calls=2, returned=returned)
    await offers.record_uses(session, trajectory_of(task, turn_of(uses=(use,)), offered=(offer,)))
    await queue.finish(session, task.id, "me", queue.TaskOutcome(state=TaskState.DONE, stop=stop))
    return task


async def test_offers_are_kept_in_order_and_as_first_recorded(session: AsyncSession) -> None:
    project = await project_row(session)
    first, second = await _skill(session, project.id, "first"), await _skill(session, project.id, "second")
    task = await _claimed(session, project.id)
    await _offer(session, task, offer_of(second, query_ngram=1), offer_of(first, query_ngram=2))
    await _offer(session, task, offer_of(first))
    await _offer(session, task)
    assert [skill.name for _, skill in await offers.to_task(session, task.id)] == ["second", "first"]
    assert [row.position for row, _ in await offers.to_task(session, task.id)] == [1, 2]


async def test_a_resumed_task_gets_the_same_offers_again(session: AsyncSession) -> None:
    project = await project_row(session)
    skill = await _skill(session, project.id)
    task = await _claimed(session, project.id)
    offer = offer_of(skill, query_ngram=1, scenario=2)
    await _offer(session, task, offer)
    assert await offers.offered(session, task.id) == [offer]


async def test_uses_are_summed_over_turns_and_only_for_the_offered_source(session: AsyncSession) -> None:
    project = await project_row(session)
    skill = await _skill(session, project.id)
    task = await _claimed(session, project.id)
    await _offer(session, task, offer_of(skill))
    trajectory = trajectory_of(
        task,
        turn_of(uses=(Use("greet", inherited=True, calls=2, returned=1),)),
        turn_of(uses=(Use("greet", inherited=True, calls=3, returned=3),)),
        turn_of(uses=(Use("greet", inherited=False, calls=9, returned=9),)),
        offered=(offer_of(skill),),
    )
    for _ in range(2):  # stored twice, it is not counted twice
        await offers.record_uses(session, trajectory)
    [(row, _)] = await offers.to_task(session, task.id)
    assert (row.calls, row.returned) == (5, 4)


async def test_the_uses_of_a_skill_name_the_task_that_wrote_it(session: AsyncSession) -> None:
    skill = await _skill(session, (await project_row(session)).id)
    user = await _using_task(session, skill, returned=2)
    [use] = await offers.uses_of(session, skill.id)
    assert (use.made_by, use.task_id, use.instruction) == (skill.task_id, user.id, "greet omar")
    assert (use.calls, use.returned, use.state, use.stop) == (2, 2, TaskState.DONE, Stop.COMPLETED)
    assert use.score is None


@pytest.mark.parametrize(
    ("returned", "stop", "score", "expected"),
    [
        (1, Stop.COMPLETED, None, SkillStats(offers=1, uses=1, successes=1)),
        (0, Stop.COMPLETED, None, SkillStats(offers=1, uses=0, successes=0)),
        (1, Stop.TURN_LIMIT, None, SkillStats(offers=1, uses=1, successes=0)),
        (1, Stop.COMPLETED, 0.4, SkillStats(offers=1, uses=1, successes=0)),
        (1, Stop.TURN_LIMIT, 0.5, SkillStats(offers=1, uses=1, successes=1)),
    ],
)
async def test_a_score_outweighs_the_stop_in_what_counts_as_success(
    session: AsyncSession, returned: int, stop: Stop, score: float | None, expected: SkillStats
) -> None:
    skill = await _skill(session, (await project_row(session)).id)
    user = await _using_task(session, skill, returned=returned, stop=stop)
    if score is not None:
        await feedback.add(session, user.id, score)
    unknown = uuid4()
    assert await offers.stats(session, [skill.id, unknown]) == {skill.id: expected, unknown: SkillStats()}
