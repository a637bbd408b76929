"""The scores and costs of tasks that were offered skills, and of those from which skills were withheld."""

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import case, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.queries import in_array
from app.db.results import proven
from app.db.tables import TaskState

_MOST = 20_000  # tasks
_task, _offer, _withheld = tables.Task, tables.SkillOffer, tables.WithheldSkill


class ComparedTask(msgspec.Struct, frozen=True):
    """A task that was offered a skill, or would have been, and that was scored, not by a judge alone.

    Turns and tokens are None if it failed.
    """

    scenario: str | None
    withheld: bool
    score: float
    turns: int | None = None
    tokens: int | None = None  # generated


async def withheld_among(session: AsyncSession, task_ids: Collection[UUID]) -> set[UUID]:
    """The tasks from which chance withheld skills that fit."""
    query = select(_withheld.task_id).where(in_array(_withheld.task_id, task_ids))
    return set(await session.scalars(query.distinct()))


async def compared_tasks(
    session: AsyncSession,
    project_id: UUID,
    *,
    skill_id: UUID | None = None,
    scenario: str | None = None,
    since: datetime | None = None,
) -> Sequence[ComparedTask]:
    """The latest 20,000, in the order in which they ended; all that concern a skill, if one is given."""
    offered, withheld = exists().where(_offer.task_id == _task.id), exists().where(_withheld.task_id == _task.id)
    if skill_id is not None:
        offered, withheld = (
            offered.where(_offer.skill_id == skill_id),
            withheld.where(_withheld.skill_id == skill_id),
        )
    done = _task.state == TaskState.DONE
    costs = (case((done, _task.turns)), case((done, _task.generated_tokens)))
    query = (
        select(_task.scenario, withheld.label("withheld"), proven(), *costs)
        .where(_task.project_id == project_id, proven().is_not(None), _task.finished_at.is_not(None))
        .where(_task.skill_run.is_(None), or_(offered, withheld))
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(_MOST)
    )
    if scenario is not None:
        query = query.where(_task.scenario == scenario)
    if since is not None:
        query = query.where(_task.finished_at >= since)
    rows = (await session.execute(query)).all()
    return [ComparedTask(*row) for row in reversed(rows)]
