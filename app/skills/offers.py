"""The skills that tasks were offered and used: edges from the tasks that wrote them. What became of these tasks,
by skill, by scenario, and of all skills for a listing that can be sorted by it.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnClause,
    ColumnElement,
    FromClause,
    Integer,
    TableValuedAlias,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import GOOD, Json, Offer, Stop, Trajectory
from app.db import lease, results, tables
from app.db.database import Handle, execute, to_json
from app.db.results import TaskSums, proven, read_sums, sums_of
from app.db.tables import TaskState

MOST_TASKS = 20_000  # by which the skills of a project are compared

_offer, _skill, _task, _withheld = tables.SkillOffer, tables.Skill, tables.Task, tables.WithheldSkill
_task_id = bindparam("task", type_=Uuid)


def _arrays(name: str, *columns: ColumnClause[Any]) -> TableValuedAlias:
    """Rows from one array parameter for each column."""
    arrays = [bindparam(f"{name}_{each.name}", type_=ARRAY(each.type)) for each in columns]
    return func.unnest(*arrays).table_valued(*columns).render_derived(name=name)


_held = lease.held()
_shown = _arrays("shown", column("skill", Uuid), column("position", Integer), column("ranks", Text))
_new = insert(_offer).from_select(
    ["task_id", "skill_id", "position", "ranks", "calls", "returned"],
    select(
        _held.c.id, _shown.c.skill, _shown.c.position, cast(_shown.c.ranks, JSONB), literal(0), literal(0)
    ).join_from(_held, _shown, true()),
)
_selection = insert(tables.TaskSelection).from_select(
    ["task_id", "record"], select(_held.c.id, cast(bindparam("selection", type_=Text), JSONB))
)
_selected = _selection.on_conflict_do_nothing().cte("selected")
_SHOW = select(_held.c.id, results.appended(_held.c.id)).add_cte(
    _new.on_conflict_do_nothing().cte("new_offers"), _selected
)
_kept_back = insert(_withheld).from_select(
    ["task_id", "skill_id"], select(_held.c.id, _shown.c.skill).join_from(_held, _shown, true())
)
_WITHHOLD = select(_held.c.id, results.appended(_held.c.id)).add_cte(
    _kept_back.on_conflict_do_nothing().cte("newly_withheld"), _selected
)
_used = _arrays("used", column("skill", Uuid), column("calls", Integer), column("returned", Integer))
_USE = (
    update(_offer)
    .where(_offer.task_id == _task_id, _offer.skill_id == _used.c.skill)
    .values(calls=_used.c.calls, returned=_used.c.returned)
    .execution_options(synchronize_session=False)
)
_OFFERED = (
    select(
        _skill.id.label("skill_id"),
        _skill.name,
        _skill.version,
        _skill.signature,
        _skill.source,
        _skill.instruction,
        _offer.ranks,
    )
    .join(_offer, _offer.skill_id == _skill.id)
    .where(_offer.task_id == _task_id)
    .order_by(_offer.position)
)


async def record_held(
    handle: Handle,
    task_id: UUID,
    owner: str,
    offers: Sequence[Offer],
    new: Sequence[results.NewEvent],
    selection: dict[str, Json],
    *,
    withheld: bool = False,
) -> None:
    """Record offers in order, or those that the task would have had if they are `withheld`; with new events and
    why these were selected. Earlier records stay: a task keeps the offers it began with.

    Raises ConflictError if the task has another owner.
    """
    values = {
        "task": task_id,
        "claim": owner,
        "shown_skill": [offer.skill_id for offer in offers],
        "shown_position": list(range(1, len(offers) + 1)),
        "shown_ranks": [to_json(offer.ranks) for offer in offers],
        "events": results.parameter(new),
        "selection": to_json(selection),
    }
    if (await execute(handle, _WITHHOLD if withheld else _SHOW, values)).first() is None:
        raise lease.lost("task", task_id, owner)


async def record_uses(handle: Handle, trajectory: Trajectory) -> None:
    """Record how often offered skills were called, counted from the turns. Idempotent."""
    if not trajectory.offered:
        return
    calls: Counter[str] = Counter()
    returned: Counter[str] = Counter()
    for use in (use for turn in trajectory.turns for use in turn.uses if use.inherited):
        calls[use.function] += use.calls
        returned[use.function] += use.returned
    values = {
        "task": trajectory.task.id,
        "used_skill": [offer.skill_id for offer in trajectory.offered],
        "used_calls": [calls[offer.name] for offer in trajectory.offered],
        "used_returned": [returned[offer.name] for offer in trajectory.offered],
    }
    await execute(handle, _USE, values)


async def to_task(session: AsyncSession, task_id: UUID) -> list[tuple[tables.SkillOffer, tables.Skill]]:
    """In the order of the offers."""
    rows = await session.execute(
        select(_offer, _skill)
        .join(_skill, _skill.id == _offer.skill_id)
        .where(_offer.task_id == task_id)
        .order_by(_offer.position)
        .execution_options(populate_existing=True)
    )
    return [(offer, skill) for offer, skill in rows]


async def withheld_from(session: AsyncSession, task_id: UUID) -> Sequence[tables.Skill]:
    """The skills that the task would have been offered."""
    query = select(_skill).join(_withheld, _withheld.skill_id == _skill.id)
    return (await session.scalars(query.where(_withheld.task_id == task_id).order_by(_skill.name))).all()


async def selection_of(session: AsyncSession, task_id: UUID) -> dict[str, Json] | None:
    """Why skills were offered to the task or not; None where nothing was found, or it has not begun."""
    row = tables.TaskSelection
    found: dict[str, Json] | None = await session.scalar(select(row.record).where(row.task_id == task_id))
    return found


async def offered(handle: Handle, task_id: UUID) -> list[Offer]:
    """The offers of the task's earlier attempt, for the one that resumes it."""
    return [Offer(**row._mapping) for row in await execute(handle, _OFFERED, {"task": task_id})]


def offer_of(skill: tables.Skill) -> Offer:
    """A skill as it is offered."""
    return Offer(
        skill_id=skill.id,
        name=skill.name,
        version=skill.version,
        signature=skill.signature,
        source=skill.source,
        instruction=skill.instruction,
    )


def skill_event(status: str, offer: Offer) -> dict[str, str | int]:
    """The data of a skill's event. `status` is offered, withheld, skipped, used, refused or written."""
    return {"status": status, "id": str(offer.skill_id), "name": offer.name, "version": offer.version}


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
    columns = (
        _offer.skill_id,
        _skill.task_id.label("made_by"),
        _offer.task_id,
        _task.instruction,
        _offer.position,
        _offer.calls,
        _offer.returned,
        _task.state,
        _task.stop,
        _task.score,
        _offer.created_at,
    )
    rows = await session.execute(
        select(*columns)
        .join(_task, _task.id == _offer.task_id)
        .join(_skill, _skill.id == _offer.skill_id)
        .where(_offer.skill_id == skill_id)
        .order_by(_offer.created_at.desc())
        .limit(limit)
    )
    return [SkillUse(**row) for row in rows.mappings()]


async def stats(session: AsyncSession, skill_ids: Sequence[UUID]) -> dict[UUID, SkillStats]:
    """The statistics of each given skill, also if it was never offered."""
    rows = await session.execute(
        select(_offer.skill_id, *_counts())
        .join(_task, _task.id == _offer.task_id)
        .where(_offer.skill_id.in_(skill_ids))
        .group_by(_offer.skill_id)
    )
    found = {skill_id: _stats(counts) for skill_id, *counts in rows}
    return {skill_id: found.get(skill_id, SkillStats()) for skill_id in skill_ids}


async def by_scenario(session: AsyncSession, skill_ids: Sequence[UUID]) -> list[ScenarioUse]:
    """The scenarios with most uses first."""
    counts = _counts()
    rows = await session.execute(
        select(_offer.skill_id, _task.scenario, *counts)
        .join(_task, _task.id == _offer.task_id)
        .where(_offer.skill_id.in_(skill_ids))
        .group_by(_offer.skill_id, _task.scenario)
        .order_by(counts[1].desc(), counts[0].desc(), _task.scenario)
    )
    return [
        ScenarioUse(skill_id=skill_id, scenario=scenario, stats=_stats(numbers))
        for skill_id, scenario, *numbers in rows
    ]


def _counts(tasks: FromClause = tables.Task.__table__) -> tuple[ColumnElement[int], ...]:
    """Of offers: as the fields of `SkillStats`."""
    used, score = _offer.returned > 0, tasks.c.score
    good = or_(score >= GOOD, and_(score.is_(None), tasks.c.stop == Stop.COMPLETED))
    return func.count(), func.count().filter(used), func.count().filter(and_(used, good))


def _stats(counts: Sequence[int]) -> SkillStats:
    return SkillStats(**dict(zip(SkillStats.__struct_fields__, counts, strict=True)))


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
        return _stats(row[1:4]) if row else SkillStats()

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
    last = func.max(latest.c.finished_at).filter(_offer.returned > 0)
    sums = sums_of(latest, latest.c.proven)
    offered = select(_offer.skill_id, *_counts(latest), last, *sums).join(latest, latest.c.id == _offer.task_id)
    withheld = select(_withheld.skill_id, *sums).join(latest, latest.c.id == _withheld.task_id)
    both = [offered.group_by(_offer.skill_id), withheld.group_by(_withheld.skill_id)]
    return SkillRecords(*[{row[0]: row for row in await session.execute(query)} for query in both])


def _latest(project_id: UUID) -> CTE:
    columns = (_task.id, _task.finished_at, _task.state, _task.stop, _task.turns, _task.generated_tokens)
    chosen = _task.skill_run.is_(None)
    scores = case((chosen, _task.score)).label("score"), case((chosen, proven())).label("proven")
    query = select(*columns, *scores).where(_task.project_id == project_id, _task.finished_at.is_not(None))
    return query.order_by(_task.finished_at.desc()).limit(MOST_TASKS).cte("latest")
