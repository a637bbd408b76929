"""The sets of skills that releases serve with: recorded with their states, and restored."""

from collections.abc import Collection, Mapping
from uuid import UUID

import msgspec
from sqlalchemy import ARRAY, ColumnElement, Uuid, all_, and_, bindparam, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.queries import in_array
from app.db.tables import LIVE_SKILLS, SkillState
from app.skills import moves

_REASON = "an earlier set of skills was restored"
_skill = tables.Skill


class RestoredSkills(msgspec.Struct, frozen=True):
    """The changes of a project's skills when an earlier set was restored."""

    restored: list[tables.Skill]  # offered again
    superseded: list[tables.Skill]  # by a restored version of their name
    withdrawn: list[tables.Skill]  # of other names; the agent may write these again
    deleted: list[tables.Skill]  # of the set, but permanently deleted


async def offered_skills(session: AsyncSession, project_id: UUID) -> dict[UUID, SkillState]:
    """All skills that tasks of the project may be offered, those of a single principal too, with their states."""
    skill = tables.Skill
    query = select(skill.id, skill.state).where(
        skill.project_id == project_id, skill.state.in_(LIVE_SKILLS), ~skill.held
    )
    return {row.id: row.state for row in await session.execute(query)}


async def restore(session: AsyncSession, project_id: UUID, wanted: Mapping[UUID, SkillState]) -> RestoredSkills:
    """Offer exactly these skills of the project, except deleted ones, and give back the states they had.

    A skill that is still offered keeps its state, unless another version of its name is to be active. One that was
    taken back since returns to no higher state than it left. One that attempted a call beyond its manifest, one
    that is held, and one that was withdrawn with its release, which is still rejected, is not offered.
    """
    rev = await moves.next_rev(session, project_id)
    plan = await _plan(session, project_id, wanted)
    for row in plan.away:  # superseded, not retired, which only a person does
        await moves.move(session, row, SkillState.SUPERSEDED, rev, reason=_REASON)
    active = [row.name for row, state in plan.back.items() if state is SkillState.ACTIVE]
    serving = and_(in_array(_skill.name, active), _skill.state == SkillState.ACTIVE)
    for row in await _unheld(session, project_id, serving):
        await moves.move(session, row, wanted[row.id], rev, reason=_REASON)
    for row, state in plan.back.items():
        await moves.move(session, row, state, rev, reason=_REASON)
    return plan.result


async def planned(
    session: AsyncSession, project_id: UUID, wanted: Mapping[UUID, SkillState], release_id: UUID
) -> RestoredSkills:
    """What `restore` would do now, once the release with this id serves: then it is no longer rejected."""
    return (await _plan(session, project_id, wanted, release_id)).result


class _Plan(msgspec.Struct, frozen=True):
    back: dict[tables.Skill, SkillState]
    away: list[tables.Skill]
    result: RestoredSkills


async def _plan(
    session: AsyncSession, project_id: UUID, wanted: Mapping[UUID, SkillState], serving: UUID | None = None
) -> _Plan:
    """Reads what changes alone: a library is large."""
    is_live, is_wanted = _skill.state.in_(LIVE_SKILLS), in_array(_skill.id, wanted)
    unwanted = _skill.id != all_(bindparam(None, list(wanted), ARRAY(Uuid)))
    changing = or_(and_(is_live, unwanted), and_(is_wanted, _skill.state.not_in(LIVE_SKILLS)))
    known = await _unheld(session, project_id, changing)
    away = [row for row in known if row.id not in wanted]
    gone = [row for row in known if row.id in wanted]
    rejected = await _rejected_releases(session, project_id) - {serving}
    back = {row: _returning(row, wanted[row.id]) for row in gone if _can_return(row, rejected)}
    names = {row.name for row in back}
    result = RestoredSkills(
        restored=list(back),
        superseded=[row for row in away if row.name in names],
        withdrawn=[row for row in away if row.name not in names],
        deleted=[row for row in gone if row.state is SkillState.DELETED],
    )
    return _Plan(back, away, result)


async def _unheld(session: AsyncSession, project_id: UUID, which: ColumnElement[bool]) -> list[tables.Skill]:
    query = select(_skill).where(_skill.project_id == project_id, ~_skill.held, which)
    return await moves.fresh(session, query.order_by(_skill.name, _skill.version))


def _returning(skill: tables.Skill, wanted: SkillState) -> SkillState:
    return min(wanted, moves.state_to_restore(skill), key=LIVE_SKILLS.index)


def _can_return(skill: tables.Skill, rejected: Collection[UUID]) -> bool:
    withdrawn = skill.moved_by in moves.WITHDRAWERS and skill.release_id in rejected
    return skill.state is not SkillState.DELETED and not skill.violations and not withdrawn


async def _rejected_releases(session: AsyncSession, project_id: UUID) -> set[UUID]:
    row = tables.Release
    query = select(row.id).where(row.project_id == project_id, row.state == tables.ReleaseState.REJECTED)
    return set(await session.scalars(query))
