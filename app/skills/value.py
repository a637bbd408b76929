"""What skills are worth: the scores and costs of tasks that were offered skills, beside those of tasks from which
skills were withheld by chance, or that used none.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Double, Select, case, cast, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.base.values import GOOD
from app.db import tables
from app.db.queries import in_array
from app.db.results import proven
from app.db.tables import TaskState

_COMPARED = 20_000  # tasks, the newest
_SAVINGS = 100_000  # tasks, the newest
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
        offered = offered.where(_offer.skill_id == skill_id)
        withheld = withheld.where(_withheld.skill_id == skill_id)
    done = _task.state == TaskState.DONE
    costs = (case((done, _task.turns)), case((done, _task.generated_tokens)))
    query = (
        select(_task.scenario, withheld.label("withheld"), proven(), *costs)
        .where(_task.project_id == project_id, proven().is_not(None), _task.finished_at.is_not(None))
        .where(_task.skill_run.is_(None), or_(offered, withheld))
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(_COMPARED)
    )
    if scenario is not None:
        query = query.where(_task.scenario == scenario)
    if since is not None:
        query = query.where(_task.finished_at >= since)
    rows = (await session.execute(query)).all()
    return [ComparedTask(*row) for row in reversed(rows)]


class MeanCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Means over `tasks` done tasks. `success` is of those with a score; None without any."""

    tasks: int
    turns: float
    generated_tokens: float
    seconds: float
    success: float | None


class ScenarioSavings(msgspec.Struct, frozen=True):
    """A scenario with tasks of both kinds."""

    scenario: str
    used: MeanCosts
    unused: MeanCosts

    def saved(self, measure: str) -> float:
        """What the tasks with skills would have cost more, at the mean of those without: negative if less.

        `measure` is turns, generated_tokens or seconds.
        """
        difference: float = getattr(self.unused, measure) - getattr(self.used, measure)
        return difference * self.used.tasks


async def by_scenario(session: AsyncSession, project_id: UUID, since: datetime) -> list[ScenarioSavings]:
    """Of done tasks that ended since then. Scenarios without tasks of both kinds are left out; the one with most
    tasks that used skills comes first.
    """
    costs: dict[str, dict[bool, MeanCosts]] = defaultdict(dict)
    for scenario, used, *figures in (await session.execute(_query(project_id, since))).all():
        names = MeanCosts.__struct_fields__
        costs[scenario][used] = MeanCosts(**dict(zip(names, figures, strict=True)))
    both = [
        ScenarioSavings(name, of[True], of[False]) for name, of in costs.items() if len(of) == len((True, False))
    ]
    return sorted(both, key=lambda each: (-each.used.tasks, each.scenario))


def total(savings: Sequence[ScenarioSavings], measure: str) -> float:
    return sum(each.saved(measure) for each in savings)


def _query(project_id: UUID, since: datetime) -> Select[Any]:
    other = aliased(_task)
    skill_runs = select(other.id).where(other.project_id == project_id, other.skill_run.is_not(None))
    used = exists().where(_offer.task_id == _task.id, _offer.returned > 0).label("used")
    newest = (
        select(_task.scenario, used, _task.turns, _task.generated_tokens, _task.score)
        .add_columns(func.extract("epoch", _task.finished_at - _task.started_at).label("seconds"))
        .where(_task.project_id == project_id, _task.finished_at >= since, _task.state == TaskState.DONE)
        .where(_task.scenario.is_not(None), _task.started_at.is_not(None), _task.id.not_in(skill_runs))
        .order_by(_task.finished_at.desc())
        .limit(_SAVINGS)
        .subquery()
    )
    c = newest.c
    scored, good = func.count(c.score), func.count().filter(c.score >= GOOD)
    means = [cast(func.avg(each), Double) for each in (c.turns, c.generated_tokens, c.seconds)]
    success = cast(good, Double) / func.nullif(scored, 0)
    return select(c.scenario, c.used, func.count(), *means, success).group_by(c.scenario, c.used)
