"""What skills have saved, from tasks of the same scenario with and without them."""

from datetime import timedelta
from pathlib import Path

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.skills import value
from tests.support.rows import offer_of, project_row, record_offers
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject, minute


async def test_savings_are_the_difference_to_tasks_of_the_same_scenario_without_skills(
    session: AsyncSession, tmp_path: Path
) -> None:
    project = ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))
    maker = await project.task(0.0, turns=4, generated_tokens=400)
    other = await project.task(1.0, turns=2, generated_tokens=200)
    skill = await project.skill(maker)
    for tokens in (90, 110):
        row = await project.task(1.0, turns=1, generated_tokens=tokens)
        await _use(session, row, skill)
    alone = await project.task(scenario="farewells", turns=9)
    await _use(session, alone, skill)
    [found] = await value.by_scenario(session, project.project.id, minute(0))
    assert found.scenario == "greetings"
    assert (found.unused.tasks, found.unused.turns, found.unused.success) == (2, 3.0, 0.5)
    assert (found.used.tasks, found.used.generated_tokens, found.used.success) == (2, 100.0, 1.0)
    assert found.used.seconds == 60.0
    assert value.total([found], "turns") == 2 * (3 - 1)
    assert value.total([found], "generated_tokens") == 2 * (300 - 100)
    since = other.finished_at + timedelta(seconds=1) if other.finished_at else minute(9)
    assert await value.by_scenario(session, project.project.id, since) == [], "the others are older"


async def test_an_offered_skill_that_was_not_used_saves_nothing(session: AsyncSession, tmp_path: Path) -> None:
    project = ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))
    maker = await project.task()
    skill = await project.skill(maker)
    idle = await project.task()
    await record_offers(session, idle.id, [offer_of(skill)])
    assert await value.by_scenario(session, project.project.id, minute(0)) == []


async def _use(session: AsyncSession, task: tables.Task, skill: tables.Skill) -> None:
    await record_offers(session, task.id, [offer_of(skill)])
    row = tables.SkillOffer
    await session.execute(update(row).where(row.task_id == task.id).values(calls=1, returned=1))
