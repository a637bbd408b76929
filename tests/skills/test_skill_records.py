"""What skills did in the latest tasks, summed up for a library: uses, and scores and costs with and without."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import tables
from app.db.tables import TaskState
from app.skills import offers
from app.skills import store as skills
from app.skills.offers import SkillStats
from app.skills.routes import SkillEffect, SkillValue
from app.skills.value import compared_tasks
from tests.support.rows import new_skill, offer_of, project_row, record_offers, task_row

DAWN = datetime(2026, 5, 1, tzinfo=UTC)


class Served:
    """A project with one skill, and its tasks, a day apart."""

    def __init__(self, session: AsyncSession, project: tables.Project, skill: tables.Skill) -> None:
        self.session, self.project, self.skill, self.days = session, project, skill, 0

    async def task(self, score: float | None, tokens: int, *, used: int | None, **columns: Json) -> None:
        """A task that was offered the skill, or with `used` None had to do without it."""
        row = await task_row(self.session, self.project.id)
        self.days += 1
        at = DAWN + timedelta(days=self.days)
        values = {"state": TaskState.DONE, "score": score, "turns": 2, "generated_tokens": tokens}
        ended = values | {"finished_at": at, "started_at": at} | columns
        await self.session.execute(update(tables.Task).where(tables.Task.id == row.id).values(ended))
        if used is None:
            self.session.add(tables.WithheldSkill(task_id=row.id, skill_id=self.skill.id))
            return
        await record_offers(self.session, row.id, [offer_of(self.skill)])
        uses = update(tables.SkillOffer).where(tables.SkillOffer.task_id == row.id)
        await self.session.execute(uses.values(calls=used, returned=used))


@pytest.fixture
async def served(session: AsyncSession) -> Served:
    project = await project_row(session)
    found = Served(session, project, await skills.add(session, project.id, new_skill()))
    for score, tokens, used in ((1.0, 100, 1), (1.0, 200, 2), (0.0, 300, 0), (None, 900, 1), (0.5, 500, None)):
        await found.task(score, tokens, used=used)
    await found.task(0.0, 7_000, used=None, state=TaskState.FAILED)
    return found


async def test_uses_scores_and_costs_are_summed_up(session: AsyncSession, served: Served) -> None:
    records = await offers.of_project(session, served.project.id)
    assert records.stats(served.skill.id) == SkillStats(offers=4, uses=3, successes=2)
    assert records.last_used_at(served.skill.id) == DAWN + timedelta(days=4)
    with_it, without = records.with_it(served.skill.id), records.without_it(served.skill.id)
    assert with_it.score == (3, 2.0, 2.0)
    assert with_it.tokens == (3, 600.0, 140_000.0), "a task without a score is compared with none"
    assert without.score == (2, 0.5, 0.25)
    assert without.tokens == (1, 500.0, 250_000.0), "a failed task has no costs"
    assert set(records.compared) == {served.skill.id}


async def test_the_library_and_rest_say_the_same_of_a_skill(session: AsyncSession, served: Served) -> None:
    records = await offers.of_project(session, served.project.id)
    effect = SkillEffect.of(records.with_it(served.skill.id), records.without_it(served.skill.id))
    tasks = await compared_tasks(session, served.project.id, skill_id=served.skill.id)
    assert SkillValue.of(tasks).one_look == effect
    assert effect.score is not None
    assert effect.tokens is not None
    assert effect.score.mean == pytest.approx(2 / 3 - 1 / 4)
    assert effect.tokens.mean == -300.0


async def test_tasks_of_another_project_are_not_counted(session: AsyncSession, served: Served) -> None:
    other = await project_row(session)
    records = await offers.of_project(session, other.id)
    assert records.stats(served.skill.id) == SkillStats()
    assert not records.compared
