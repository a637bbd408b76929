"""What using skills is worth to the reward: chance decides who does without, where it did so often enough."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.projects import store as projects
from tests.support.read_served import rewards
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject
from trainer.experience import TrialTask, use_values


def tried(good: int, bad: int, *, withheld: bool, scenario: str = "mail") -> list[TrialTask]:
    return [TrialTask(scenario, withheld, score) for score in (1.0,) * good + (0.0,) * bad]


def test_a_few_tasks_that_did_without_show_nothing() -> None:
    offered = tried(60, 40, withheld=False)
    assert use_values([*offered, *tried(9, 0, withheld=True)]) == {}
    assert use_values(tried(10, 0, withheld=True)) == {}
    assert use_values([*offered, *tried(10, 0, withheld=True)]) == {"mail": pytest.approx(-0.4)}


def test_a_loss_that_chance_explains_is_none() -> None:
    """Of 110 tasks 100 succeed: that all ten without skills are among these has a chance of 0.35."""
    offered = tried(90, 10, withheld=False)
    assert use_values([*offered, *tried(10, 0, withheld=True)]) == {"mail": 0}
    assert use_values([*offered, *tried(5, 5, withheld=True)]) == {"mail": pytest.approx(0.4)}


def test_scenarios_are_told_apart_and_the_latest_thousand_tasks_count() -> None:
    old, new = tried(0, 500, withheld=False), tried(990, 0, withheld=False)
    others = [*tried(1, 9, withheld=False, scenario="notes"), *tried(10, 0, withheld=True, scenario="notes")]
    found = use_values([*old, *others, *new, *tried(0, 10, withheld=True)])
    assert found == {"mail": 1.0, "notes": pytest.approx(-0.9)}


@pytest.fixture
async def shop(session: AsyncSession, tmp_path: Path) -> ServedProject:
    project = await projects.create(session, "shop")
    return ServedProject(session, project, byte_tokenizer(tmp_path))


@pytest.mark.parametrize("scenario", ["greetings", None])
@pytest.mark.parametrize(("withheld", "paid"), [(9, 2.0), (10, 1.0)])
async def test_uses_that_the_easy_tasks_chose_are_paid_only_until_chance_shows_their_harm(
    shop: ServedProject, scenario: str | None, withheld: int, paid: float
) -> None:
    """12 tasks used the skill and succeeded, 8 did not use it and failed; without the offer all succeed."""
    kind: dict[str, Any] = {"scenario": scenario, "instruction": "say hello"}
    maker = await shop.task(**kind)
    skill = await shop.skill(maker)
    users, others = list[tables.Task](), list[tables.Task]()
    for number in range(20):
        if number % 5 < 3:
            users.append(await shop.task(used=(skill,), **kind))
        else:
            others.append(await shop.task(0.0, **kind))
            await shop.rollout(others[-1], shop.turn(), (skill,))
    for row in users + others:
        shop.session.add(tables.SkillOffer(task_id=row.id, skill_id=skill.id, position=1, ranks={}))
    for _ in range(withheld):
        row = await shop.task(**kind)
        shop.session.add(tables.WithheldSkill(task_id=row.id, skill_id=skill.id))
    await shop.session.flush()
    found = await rewards(shop)
    assert {found[row.id] for row in users} == {paid}
