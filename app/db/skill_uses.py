"""What became of the skills that tasks were offered: uses, successes, and the tasks."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, FromClause, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Stop
from app.db import tables
from app.db.tables import TaskState


class SkillUse(msgspec.Struct, frozen=True, kw_only=True):
    """One edge: the skill that task `made_by` wrote was offered to task `task_id`."""

    skill_id: UUID
    made_by: UUID | None
    task_id: UUID
    instruction: str  #: of the task it was offered to
    position: int  #: among its offers, from 1
    calls: int
    returned: int  #: of the calls, those that returned instead of raising
    state: TaskState
    stop: Stop | None = msgspec.field(name="stop_reason")
    score: float | None
    created_at: datetime


class SkillStats(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tasks. A use is a success if the task scored at least 0.5 or, without a score, was completed."""

    offers: int = 0
    uses: int = 0  #: the skill returned at least once
    successes: int = 0


class ScenarioUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of one scenario that were offered a version of a skill."""

    skill_id: UUID
    scenario: str | None
    stats: SkillStats


async def uses_of(session: AsyncSession, skill_id: UUID, limit: int = 500) -> list[SkillUse]:
    """Newest first, with offers that were not used (calls=0)."""
    offer, task, skill = tables.SkillOffer, tables.Task, tables.Skill
    columns = (
        offer.skill_id,
        skill.task_id.label("made_by"),
        offer.task_id,
        task.instruction,
        offer.position,
        offer.calls,
        offer.returned,
        task.state,
        task.stop,
        task.score,
        offer.created_at,
    )
    rows = await session.execute(
        select(*columns)
        .join(task, task.id == offer.task_id)
        .join(skill, skill.id == offer.skill_id)
        .where(offer.skill_id == skill_id)
        .order_by(offer.created_at.desc())
        .limit(limit)
    )
    return [SkillUse(**row) for row in rows.mappings()]


async def stats(session: AsyncSession, skill_ids: Sequence[UUID]) -> dict[UUID, SkillStats]:
    """The statistics of each given skill, also if it was never offered."""
    offer = tables.SkillOffer
    used = offer.returned > 0
    rows = await session.execute(
        select(
            offer.skill_id,
            func.count().label("offers"),
            func.count().filter(used).label("uses"),
            func.count().filter(and_(used, succeeded())).label("successes"),
        )
        .join(tables.Task, tables.Task.id == offer.task_id)
        .where(offer.skill_id.in_(skill_ids))
        .group_by(offer.skill_id)
    )
    found = {row.skill_id: SkillStats(offers=row.offers, uses=row.uses, successes=row.successes) for row in rows}
    return {skill_id: found.get(skill_id, SkillStats()) for skill_id in skill_ids}


async def by_scenario(session: AsyncSession, skill_ids: Sequence[UUID]) -> list[ScenarioUse]:
    """The scenarios with most uses first."""
    offer, task = tables.SkillOffer, tables.Task
    used = offer.returned > 0
    counts = (func.count(), func.count().filter(used), func.count().filter(and_(used, succeeded())))
    rows = await session.execute(
        select(offer.skill_id, task.scenario, *counts)
        .join(task, task.id == offer.task_id)
        .where(offer.skill_id.in_(skill_ids))
        .group_by(offer.skill_id, task.scenario)
        .order_by(counts[1].desc(), counts[0].desc(), task.scenario)
    )
    return [
        ScenarioUse(
            skill_id=skill_id,
            scenario=scenario,
            stats=SkillStats(offers=offers, uses=uses, successes=successes),
        )
        for skill_id, scenario, offers, uses, successes in rows
    ]


def succeeded(tasks: FromClause = tables.Task.__table__) -> ColumnElement[bool]:
    """Whether a row of `tasks` makes a use a success."""
    score = tasks.c.score
    return or_(score >= 0.5, and_(score.is_(None), tasks.c.stop == Stop.COMPLETED))
