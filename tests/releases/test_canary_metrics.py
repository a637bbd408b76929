"""The samples of a canary's metrics: which tasks of both releases count, as what, and for how long."""

from hashlib import md5
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select

from app.base.values import BASE, Stop
from app.db import queries
from app.db.database import Sessions
from app.db.tables import TaskState
from app.releases import store as releases
from app.releases import trials_store
from app.releases.canary import CanaryAction, CanaryRules
from app.tasks import feedback
from tests.support.canary_project import Project, apply_decision, begin, evaluate, open_project

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
    found = (await evaluate(project)).metrics
    counts = {name: tuple(metric.tasks.values()) for name, metric in found.items()}
    assert counts == {"reward": (1, 2), "errors": (3, 2), "turns": (2, 2), "tokens": (2, 2)}
    means = {name: [each.canary, each.baseline] for name, each in found.items()}
    assert means["reward"] == [1.0, 0.5]
    assert means["errors"] == [pytest.approx(2 / 3), 0.0]
    assert means["turns"] == [3.0, 2.0], "twelve turns count as four, twice what tasks took before"
    assert means["tokens"] == [100.0, 100.0]


async def _activate(project: Project, model: str) -> UUID:
    changed = await project.propose(model)
    async with project.sessions.begin() as session:
        return (await releases.activate(session, changed)).id


async def test_a_changed_document_interrupts_no_trial_and_other_weights_begin_it_anew(project: Project) -> None:
    first = (await project.release(1)).id
    await project.ended(first, 0.0)
    began = await begin(project)
    await project.ended(began.id, 1.0)
    await project.ended(first, 0.5)
    documents = await _activate(project, BASE)
    await project.ended(documents, 0.0)
    await project.ended(began.id, 0.0)
    reward = (await evaluate(project)).metrics["reward"]
    assert (reward.tasks, reward.canary, reward.baseline) == ({"canary": 2, "baseline": 2}, 0.5, 0.25)
    async with project.sessions() as session:
        trial = await trials_store.current(session, project.id)
        assert trial is not None
        sides = [await session.scalar(select(func.count()).where(each)) for each in (trial.new, trial.old)]
    assert sides == [2, 2]
    other = await _activate(project, "beef")
    await project.ended(other, 1.0)
    await project.ended(began.id, 0.0)
    reward = (await evaluate(project)).metrics["reward"]
    assert (reward.tasks, reward.canary, reward.baseline) == ({"canary": 1, "baseline": 1}, 0.0, 1.0)


async def test_tasks_that_their_check_could_not_score_have_reward_zero_and_are_errors(project: Project) -> None:
    active = (await project.release(1)).id
    began = await begin(project)
    failure = "the check failed: TypeError"
    await project.ended(began.id, None, failure=failure, **CHECKED)
    [forgiven] = await project.ended(began.id, None, failure=failure, **CHECKED)
    await project.ended(began.id, None, state=TaskState.FAILED, stop=None, **CHECKED)
    await project.ended(began.id, 1.0, count=2, **CHECKED)
    await project.ended(active, 1.0, count=3, **CHECKED)
    await project.ended(active, 0.0, **CHECKED)
    await project.ended(active, None, check_code="")
    async with project.sessions.begin() as session:
        await feedback.add(session, forgiven, 1.0)  # a person's score counts before what a check did
    found = (await evaluate(project)).metrics
    means = {name: [each.canary, each.baseline] for name, each in found.items()}
    assert means["reward"] == [0.6, 0.75]
    assert means["errors"] == [0.6, 0.0]


@pytest.mark.slow
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
    assert await apply_decision(project) is CanaryAction.REJECT


async def test_a_task_is_of_its_scenario_or_of_its_instruction_and_late_scores_do_not_count(
    project: Project,
) -> None:
    began = await begin(project)
    await project.ended(began.id, 1.0, scenario="mail")
    [late] = await project.ended(began.id, None, instruction="Count  my MAILS")
    await project.ended((await project.release(1)).id, None, instruction="count my mails")
    async with project.sessions.begin() as session:
        now = await queries.now(session)
        await feedback.add(session, late, 0.25)
        await feedback.add(session, late, 0.5)
        active, since = await releases.active(session, project.id), began.created_at
        found = await trials_store.ended_tasks(session, began, active, since, 9)
        before = await trials_store.ended_tasks(session, began, active, since, 9, until=now)
        first = await trials_store.ended_tasks(session, began, active, since, 1)
    hashed = f"instruction {md5(b'count my mails').hexdigest()}"
    assert [task.kind for task in found] == ["mail", hashed, hashed]
    assert [task.on_canary for task in found] == [True, True, False]
    assert [task.reward for task in found] == [1.0, 0.5, None]
    assert [task.reward for task in before] == [1.0, None, None]
    assert first == found[:1]


async def test_the_usual_of_a_kind_is_what_was_known_before_the_canary(project: Project) -> None:
    active = (await project.release(1)).id
    for score in (1.0, 0.5, None):
        [last] = await project.ended(active, score, scenario="mail")
    await project.ended(active, 1.0, state=TaskState.FAILED, stop=None, scenario="mail")
    await project.ended(active, None, scenario="buy")
    began = await begin(project)
    assert began.canary_at is not None
    await project.ended(active, 0.0, scenario="mail")
    async with project.sessions.begin() as session:
        await feedback.add(session, last, 0.0)
        usual = await trials_store.usual_kinds(session, project.id, began.canary_at)
    assert usual == {"mail": (4, 3, 2.5, 1.0, 3, None), "buy": (1, 0, 0.0, 0.0, 0, None)}


async def test_what_a_check_could_not_score_is_no_score_of_its_kind(project: Project) -> None:
    active = (await project.release(1)).id
    await project.ended(active, 1.0, count=12, scenario="mail", **CHECKED)
    await project.ended(active, None, count=2, scenario="mail", **CHECKED)
    began = await begin(project)
    assert began.canary_at is not None
    await project.ended(began.id, None, scenario="mail", **CHECKED)
    await project.ended(began.id, 1.0, scenario="mail", **CHECKED)
    async with project.sessions() as session:
        usual = await trials_store.usual_kinds(session, project.id, began.canary_at)
        rows = await trials_store.ended_tasks(
            session, began, await releases.active(session, project.id), began.canary_at, 9
        )
    assert usual == {"mail": (14, 14, 12.0, 2.0, 12, 1.0)}
    assert [(task.reward, task.unscored) for task in rows] == [(0.0, True), (1.0, False)]
    found = await evaluate(project)
    assert found.not_counted.constant_checks == {"mail": 2}
    assert found.metrics["reward"].tasks == {"canary": 0, "baseline": 0}


async def test_both_arms_are_cut_at_the_same_time_and_then_the_trial_ends(project: Project) -> None:
    active, rules = (await project.release(1)).id, CanaryRules(max_compared=12)
    await begin(project)
    await project.ended(active, 0.5, count=8)
    await project.ended(project.candidate, 1.0, count=3)
    assert (await evaluate(project, rules)).action is CanaryAction.WAIT
    await project.ended(active, 0.5)
    await project.ended(project.candidate, 0.0, count=3)
    decision = await evaluate(project, rules)
    assert [each.tasks for each in decision.metrics.values()] == [{"canary": 3, "baseline": 9}] * 4
    assert decision.metrics["reward"].canary == 1.0, "what came after the others' last task does not count"
    assert decision.action is CanaryAction.STOP


async def test_another_active_release_restarts_the_comparison(project: Project) -> None:
    other = await project.propose()
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended((await project.release(1)).id, 0.0)
    assert (await evaluate(project)).metrics["reward"].tasks == {"canary": 1, "baseline": 1}
    await project.promoter.activate(other, "key ops")
    assert (await evaluate(project)).metrics["reward"].tasks == {"canary": 0, "baseline": 0}
    await project.ended(project.candidate, 1.0)
    assert (await evaluate(project)).metrics["reward"].tasks == {"canary": 1, "baseline": 0}


async def test_the_usual_of_a_task_is_the_95th_percentile(project: Project) -> None:
    active = (await project.release(1)).id
    for turns in range(1, 101):
        await project.ended(active, None, turns=turns, generated_tokens=10 * turns)
    await project.ended(active, None, state=TaskState.FAILED, turns=500)
    async with project.sessions() as session:
        now = await session.scalar(func.clock_timestamp())
        assert now is not None
        assert await trials_store.typical_cost(session, project.id, now) == trials_store.TypicalCost(95.0, 950.0)
        assert await trials_store.typical_cost(session, project.id, (await project.release(1)).created_at) is None


async def test_a_canary_is_evaluated_even_if_tasks_usually_end_before_their_first_turn(
    project: Project,
) -> None:
    active = (await project.release(1)).id
    await project.ended(active, None, turns=0, generated_tokens=0)
    await begin(project)
    await project.ended(project.candidate, 1.0)
    await project.ended(active, None, turns=0, generated_tokens=0)
    found = (await evaluate(project)).metrics
    for name in ("turns", "tokens"):
        assert [found[name].canary, found[name].baseline] == [1.0, 0.0]
