"""Skills that a changed API document may have broken: a queue, and what came of each."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import lease, tables
from app.db.queries import from_now
from app.db.tables import RepairOutcome, SkillState

_repair, _task = tables.SkillRepair, tables.Task
_queue = lease.LeaseQueue(_repair, _repair.finished_at.is_(None))
_DAY = 86_400.0


async def open_(
    session: AsyncSession, skill: tables.Skill, change_id: UUID, was: SkillState, *, fits: bool
) -> None:
    """Queue a skill. What is under way for an earlier change ends, and its state before that one counts."""
    earlier = await session.scalar(
        update(_repair)
        .where(_repair.skill_id == skill.id, _repair.finished_at.is_(None))
        .values(finished_at=func.clock_timestamp(), outcome=RepairOutcome.LEFT, owner=None, lease_until=None)
        .returning(_repair.was)
    )
    session.add(
        tables.SkillRepair(skill_id=skill.id, change_id=change_id, was=earlier or was, fits=fits, tried=[])
    )
    await session.flush()


async def under_way(session: AsyncSession, project_id: UUID) -> list[tables.Skill]:
    """The skills of a project that are in quarantine and in the queue."""
    skill = tables.Skill
    query = select(skill).join(_repair, _repair.skill_id == skill.id)
    quarantined = skill.state == SkillState.QUARANTINED
    query = query.where(skill.project_id == project_id, quarantined, _repair.finished_at.is_(None))
    return list(await session.scalars(query.order_by(skill.id).execution_options(populate_existing=True)))


async def claim(session: AsyncSession, owner: str, seconds: float) -> tables.SkillRepair | None:
    """The oldest that is due and that nobody has. Two processes never get the same one."""
    claimed = _queue.claim(owner, seconds, _repair.next_at <= func.clock_timestamp()).returning(_repair)
    found: tables.SkillRepair | None = await session.scalar(claimed.execution_options(populate_existing=True))
    return found


async def is_held(session: AsyncSession, row: tables.SkillRepair) -> bool:
    """Whether the claim that returned `row` still holds; then nobody else gets it before this transaction ends."""
    held = select(_repair.id).where(_queue.held(row.owner or "", _repair.id == row.id)).with_for_update()
    return await session.scalar(held) is not None


async def go_on_later(session: AsyncSession, row: tables.SkillRepair, seconds: float, **values: Any) -> None:
    later = {"next_at": from_now(seconds), **values}
    await session.execute(_queue.hand_back(row.owner or "", _repair.id == row.id, **later))


async def finish(
    session: AsyncSession, row: tables.SkillRepair, outcome: RepairOutcome, tried: Sequence[str]
) -> None:
    await session.execute(_queue.finish(row.owner or "", _repair.id == row.id, outcome=outcome, tried=list(tried)))


async def tasks_today(session: AsyncSession, project_id: UUID) -> int:
    """The project's tasks of the last 24 hours that were to repair skills, without those that people ran again."""
    which = (_task.repairs.is_not(None), _task.rerun_of.is_(None), _task.created_at > from_now(-_DAY))
    counted = select(func.count()).where(_task.project_id == project_id, *which)
    return await session.scalar(counted) or 0


async def of_skill(session: AsyncSession, skill_id: UUID) -> Sequence[tuple[tables.SkillRepair, str]]:
    """Newest first, each with the name of the API that changed."""
    change, api = tables.ApiChange, tables.Api
    query = (
        select(_repair, api.name)
        .join(change, change.id == _repair.change_id)
        .join(api, api.id == change.api_id)
        .where(_repair.skill_id == skill_id)
        .order_by(_repair.created_at.desc(), _repair.id)
    )
    return [(row, name) for row, name in await session.execute(query)]


async def outcomes(
    session: AsyncSession, change_ids: Sequence[UUID]
) -> dict[UUID, dict[RepairOutcome | None, list[UUID]]]:
    """For each change, the skills by what came of them; None: not yet."""
    query = select(_repair.change_id, _repair.outcome, _repair.skill_id)
    found: dict[UUID, dict[RepairOutcome | None, list[UUID]]] = {each: {} for each in change_ids}
    for change_id, outcome, skill_id in await session.execute(
        query.where(_repair.change_id.in_(change_ids)).order_by(_repair.created_at, _repair.id)
    ):
        found[change_id].setdefault(outcome, []).append(skill_id)
    return found
