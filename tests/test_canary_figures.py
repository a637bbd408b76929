"""What a canary is judged by: which tasks of both releases count, as what, and for how long."""

from typing import Any

import pytest
from sqlalchemy import func

from app.db import canaries, feedback, releases
from app.db.database import Sessions
from app.db.models import TaskState
from app.records import Stop
from app.release.canary_decision import Action, Rules
from tests.canary_project import Project, begin, judge, open_project, settle

CHECKED: dict[str, Any] = {"check_code": "score = float(answer['total'] == 42)"}


@pytest.fixture
async def project(committed: Sessions) -> Project:
    return await open_project(committed)


async def test_each_arm_is_measured_by_the_tasks_pinned_since_both_serve(project: Project) -> None:
    active = (await project.release(1)).id
    await project.ended(active, 0.0)
    await project.ended(project.candidate, 0.0)
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended(project.candidate, None, stop=Stop.TURN_LIMIT, turns=12)
    await project.ended(project.candidate, None, state=TaskState.FAILED, stop=None, turns=0, generated_tokens=0)
    await project.ended(project.candidate, None, state=TaskState.CANCELLED, stop=Stop.CANCELLED)
    await project.ended(active, 0.5, count=2)
    found = (await judge(project)).figures
    counts = {name: tuple(figure.tasks.values()) for name, figure in found.items()}
    assert counts == {"reward": (1, 2), "errors": (3, 2), "turns": (2, 2), "tokens": (2, 2)}
    means = {name: [arm and arm.mean for arm in (each.canary, each.active)] for name, each in found.items()}
    assert means["reward"] == [1.0, 0.5]
    assert means["errors"] == [pytest.approx(2 / 3), 0.0]
    assert means["turns"] == [3.0, 2.0], "twelve turns count as four, twice what tasks took before"
    assert means["tokens"] == [100.0, 100.0]


async def test_tasks_that_their_check_could_not_score_earn_nothing_and_are_errors(project: Project) -> None:
    active = (await project.release(1)).id
    began = await begin(project)
    [crashed] = await project.ended(began.id, None, failure="the check failed: TypeError", **CHECKED)
    await project.ended(began.id, None, state=TaskState.FAILED, stop=None, **CHECKED)
    await project.ended(began.id, 1.0, count=2, **CHECKED)
    await project.ended(active, 1.0, count=3, **CHECKED)
    await project.ended(active, 0.0, **CHECKED)
    await project.ended(active, None, check_code="")
    async with project.sessions.begin() as session:
        await feedback.add(session, crashed, 1.0)
    found = (await judge(project)).figures
    means = {name: [arm and arm.mean for arm in (each.canary, each.active)] for name, each in found.items()}
    assert means["reward"] == [0.5, 0.75]
    assert means["errors"] == [0.5, 0.0]


async def test_a_canary_whose_wrong_answers_break_the_check_is_not_promoted_for_its_good_ones(
    project: Project,
) -> None:
    active = (await project.release(1)).id
    await begin(project)
    for _ in range(10):
        await project.ended(project.candidate, 1.0, count=4, **CHECKED)
        await project.ended(project.candidate, None, count=6, **CHECKED)
        await project.ended(active, 1.0, count=5, **CHECKED)
        await project.ended(active, 0.0, count=5, **CHECKED)
    assert await settle(project) is Action.REJECT


async def test_rewards_come_in_the_order_in_which_tasks_were_scored(project: Project) -> None:
    began = await begin(project)
    [late] = await project.ended(began.id, None)
    await project.ended(began.id, 1.0)
    async with project.sessions.begin() as session:
        await feedback.add(session, late, 0.25)
        await feedback.add(session, late, 0.5)
        active = await releases.active(session, project.id)
        found, _ = await canaries.results(session, began, active, began.created_at, 9)
    assert list(found.rewards) == [1.0, 0.5]


async def test_both_arms_end_at_the_same_moment_and_then_it_is_given_up(project: Project) -> None:
    active, rules = (await project.release(1)).id, Rules(ended=12)
    await begin(project)
    await project.ended(active, 0.5, count=8)
    await project.ended(project.candidate, 1.0, count=3)
    assert (await judge(project, rules)).action is Action.WAIT
    await project.ended(active, 0.5)
    await project.ended(project.candidate, 0.0, count=3)
    verdict = await judge(project, rules)
    assert [each.tasks for each in verdict.figures.values()] == [{"canary": 3, "active": 9}] * 4
    reward = verdict.figures["reward"].canary
    assert reward is not None
    assert reward.mean == 1.0, "what came after the others' last task does not count"
    assert verdict.action is Action.REJECT


async def test_another_active_release_begins_the_comparison_anew(project: Project) -> None:
    other = await project.propose()
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended((await project.release(1)).id, 0.0)
    assert (await judge(project)).figures["reward"].tasks == {"canary": 1, "active": 1}
    await project.promoter.activate(other, "key ops")
    assert (await judge(project)).figures["reward"].tasks == {"canary": 0, "active": 0}
    await project.ended(project.candidate, 1.0)
    assert (await judge(project)).figures["reward"].tasks == {"canary": 1, "active": 0}


async def test_what_a_task_usually_takes_is_what_95_of_100_stayed_within(project: Project) -> None:
    active = (await project.release(1)).id
    for turns in range(1, 101):
        await project.ended(active, None, turns=turns, generated_tokens=10 * turns)
    await project.ended(active, None, state=TaskState.FAILED, turns=500)
    async with project.sessions() as session:
        now = await session.scalar(func.clock_timestamp())
        assert now is not None
        assert await canaries.typical_cost(session, project.id, now) == canaries.TypicalCost(95.0, 950.0)
        assert await canaries.typical_cost(session, project.id, (await project.release(1)).created_at) is None


async def test_where_tasks_usually_ended_before_their_first_turn_a_canary_is_judged_all_the_same(
    project: Project,
) -> None:
    active = (await project.release(1)).id
    await project.ended(active, None, turns=0, generated_tokens=0)
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended(active, None, turns=0, generated_tokens=0)
    found = (await judge(project)).figures
    for name in ("turns", "tokens"):
        assert [arm and arm.mean for arm in (found[name].canary, found[name].active)] == [1.0, 0.0]
