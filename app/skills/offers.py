"""The skills that tasks were offered and used: edges from the tasks that wrote them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    ColumnClause,
    Integer,
    Select,
    TableValuedAlias,
    Text,
    Uuid,
    bindparam,
    cast,
    column,
    func,
    literal,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json, Offer, Trajectory
from app.db import lease, results, tables
from app.db.database import Handle, execute, to_json

_row, _skill = tables.SkillOffer, tables.Skill
_task_id = bindparam("task", type_=Uuid)


def _arrays(name: str, *columns: ColumnClause[Any]) -> TableValuedAlias:
    """Rows from one array parameter for each column."""
    arrays = [bindparam(f"{name}_{each.name}", type_=ARRAY(each.type)) for each in columns]
    return func.unnest(*arrays).table_valued(*columns).render_derived(name=name)


_held = lease.held()
_shown = _arrays("shown", column("skill", Uuid), column("position", Integer), column("ranks", Text))
_new = insert(_row).from_select(
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
_kept_back = insert(tables.WithheldSkill).from_select(
    ["task_id", "skill_id"], select(_held.c.id, _shown.c.skill).join_from(_held, _shown, true())
)
_WITHHOLD = select(_held.c.id, results.appended(_held.c.id)).add_cte(
    _kept_back.on_conflict_do_nothing().cte("newly_withheld"), _selected
)
_used = _arrays("used", column("skill", Uuid), column("calls", Integer), column("returned", Integer))
_USE = (
    update(_row)
    .where(_row.task_id == _task_id, _row.skill_id == _used.c.skill)
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
        _row.ranks,
    )
    .join(_row, _row.skill_id == _skill.id)
    .where(_row.task_id == _task_id)
    .order_by(_row.position)
)


async def record(session: AsyncSession, task_id: UUID, offers: Sequence[Offer]) -> None:
    """Record offers in order. Earlier records stay: a task keeps the offers it began with."""
    rows = [
        {"task_id": task_id, "skill_id": offer.skill_id, "position": position, "ranks": offer.ranks}
        for position, offer in enumerate(offers, start=1)
    ]
    if rows:
        await session.execute(insert(tables.SkillOffer).values(rows).on_conflict_do_nothing())


async def show(
    handle: Handle,
    task_id: UUID,
    owner: str,
    offers: Sequence[Offer],
    new: Sequence[results.NewEvent],
    selection: dict[str, Json],
) -> None:
    """Record offers as `record`, with new events and why these were selected. Raises ConflictError if the task has
    another owner.
    """
    await _record_held(handle, _SHOW, task_id, owner, offers, new, selection)


async def withhold(
    handle: Handle,
    task_id: UUID,
    owner: str,
    offers: Sequence[Offer],
    new: Sequence[results.NewEvent],
    selection: dict[str, Json],
) -> None:
    """Record that the task would have been offered these, with new events. Raises as `show`."""
    await _record_held(handle, _WITHHOLD, task_id, owner, offers, new, selection)


async def _record_held(
    handle: Handle,
    statement: Select[Any],
    task_id: UUID,
    owner: str,
    offers: Sequence[Offer],
    new: Sequence[results.NewEvent],
    selection: dict[str, Json],
) -> None:
    values = {
        "task": task_id,
        "claim": owner,
        "shown_skill": [offer.skill_id for offer in offers],
        "shown_position": list(range(1, len(offers) + 1)),
        "shown_ranks": [to_json(offer.ranks) for offer in offers],
        "events": results.parameter(new),
        "selection": to_json(selection),
    }
    if (await execute(handle, statement, values)).first() is None:
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
        select(tables.SkillOffer, tables.Skill)
        .join(tables.Skill, tables.Skill.id == tables.SkillOffer.skill_id)
        .where(tables.SkillOffer.task_id == task_id)
        .order_by(tables.SkillOffer.position)
        .execution_options(populate_existing=True)
    )
    return [(offer, skill) for offer, skill in rows]


async def withheld_from(session: AsyncSession, task_id: UUID) -> Sequence[tables.Skill]:
    """The skills that the task would have been offered."""
    kept_back = tables.WithheldSkill
    query = select(tables.Skill).join(kept_back, kept_back.skill_id == tables.Skill.id)
    return (await session.scalars(query.where(kept_back.task_id == task_id).order_by(tables.Skill.name))).all()


async def selection_of(session: AsyncSession, task_id: UUID) -> dict[str, Json] | None:
    """Why skills were offered to the task or not; None where nothing was found, or it has not begun."""
    row = tables.TaskSelection
    found: dict[str, Json] | None = await session.scalar(select(row.record).where(row.task_id == task_id))
    return found


async def offered(handle: Handle, task_id: UUID) -> list[Offer]:
    """The offers of the task's earlier attempt, for the one that resumes it."""
    return [Offer(**row._mapping) for row in await execute(handle, _OFFERED, {"task": task_id})]


def offer_of(skill: tables.Skill, ranks: dict[str, int] | None = None) -> Offer:
    """A skill as it is offered."""
    return Offer(
        skill_id=skill.id,
        name=skill.name,
        version=skill.version,
        signature=skill.signature,
        source=skill.source,
        instruction=skill.instruction,
        ranks=ranks or {},
    )


def skill_event(status: str, offer: Offer) -> dict[str, str | int]:
    """The data of a skill's event; `status` is "offered", "withheld", "skipped", "used", "refused" or
    "written"."""
    return {"status": status, "id": str(offer.skill_id), "name": offer.name, "version": offer.version}
