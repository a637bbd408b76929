"""What the skills of a project did in its latest tasks, for a listing that can be sorted by it."""

from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CTE, and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.results import TaskSums, proven, read_sums, sums_of
from app.db.skill_uses import SkillStats, succeeded

MOST_TASKS = 20_000

_task, _offer, _withheld = tables.Task, tables.SkillOffer, tables.WithheldSkill


class SkillRecords:
    """Of the skills that the tasks were offered, or would have been. Rows are read when they are asked for: a
    library is large, and a page shows few of it.
    """

    def __init__(self, offered: dict[UUID, Any], withheld: dict[UUID, Any]) -> None:
        self._offered, self._withheld = offered, withheld

    @property
    def compared(self) -> Collection[UUID]:
        """The skills that some of the tasks had to do without."""
        return self._withheld.keys()

    def stats(self, skill_id: UUID) -> SkillStats:
        row = self._offered.get(skill_id)
        return SkillStats(offers=row[1], uses=row[2], successes=row[3]) if row else SkillStats()

    def uses(self, skill_id: UUID) -> int:
        row = self._offered.get(skill_id)
        return row[2] if row else 0

    def last_used_at(self, skill_id: UUID) -> datetime | None:
        row = self._offered.get(skill_id)
        return row[4] if row else None

    def with_it(self, skill_id: UUID) -> TaskSums:
        """The tasks that were offered it."""
        row = self._offered.get(skill_id)
        return read_sums(row[5:]) if row else TaskSums()

    def without_it(self, skill_id: UUID) -> TaskSums:
        """Those that would have been, which chance decided."""
        row = self._withheld.get(skill_id)
        return read_sums(row[1:]) if row else TaskSums()


async def of_project(session: AsyncSession, project_id: UUID) -> SkillRecords:
    """By the latest 20,000 tasks that ended."""
    latest = _latest(project_id)
    used = _offer.returned > 0
    columns = (
        func.count(),
        func.count().filter(used),
        func.count().filter(and_(used, succeeded(latest))),
        func.max(latest.c.finished_at).filter(used),
    )
    sums = sums_of(latest, latest.c.proven)
    offered = select(_offer.skill_id, *columns, *sums).join(latest, latest.c.id == _offer.task_id)
    withheld = select(_withheld.skill_id, *sums).join(latest, latest.c.id == _withheld.task_id)
    both = [offered.group_by(_offer.skill_id), withheld.group_by(_withheld.skill_id)]
    return SkillRecords(*[{row[0]: row for row in await session.execute(query)} for query in both])


def _latest(project_id: UUID) -> CTE:
    columns = (_task.id, _task.finished_at, _task.state, _task.stop, _task.turns, _task.generated_tokens)
    chosen = _task.skill_run.is_(None)
    scores = case((chosen, _task.score)).label("score"), case((chosen, proven())).label("proven")
    query = select(*columns, *scores).where(_task.project_id == project_id, _task.finished_at.is_not(None))
    return query.order_by(_task.finished_at.desc()).limit(MOST_TASKS).cte("latest")
