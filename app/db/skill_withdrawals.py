"""Withdrawals of skills, which bring back the versions that these had replaced."""

from uuid import UUID

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.skill_moves import ADMISSION, CANARY, SCORES, live_versions, move, next_rev, state_to_restore
from app.db.tables import LIVE_SKILLS, SkillState


async def withdraw(
    session: AsyncSession,
    release_id: UUID,
    project_id: UUID,
    reason: str,
    *,
    actor: str = CANARY,
    state: SkillState = SkillState.RETIRED,
) -> list[tables.Skill]:
    """Take out the skills that tasks of a release wrote, and bring back the versions that active ones replaced."""
    rev = await next_rev(session, project_id)
    withdrawn = await written_by(session, release_id)
    for row in withdrawn:
        was_active = row.state is SkillState.ACTIVE
        await move(session, row, state, rev, actor=actor, reason=reason)
        if was_active:
            others = tables.Skill.release_id.is_distinct_from(release_id)
            await _bring_back(session, await _replaced_by(session, row, others), rev, actor)
    return withdrawn


async def written_by(session: AsyncSession, release_id: UUID) -> list[tables.Skill]:
    """The skills that tasks of a release wrote and that are offered, or would be if they were not held."""
    skill = tables.Skill
    rows = await session.scalars(
        select(skill)
        .where(skill.release_id == release_id, skill.state.in_(LIVE_SKILLS))
        .order_by(skill.name, skill.version)
        .execution_options(populate_existing=True)
    )
    return list(rows)


async def withdraw_harmful(session: AsyncSession, skill: tables.Skill, rev: int, reason: str) -> None:
    """Take out a version that is not active, and bring back the one that it replaced for its principal."""
    await move(session, skill, SkillState.RETIRED, rev, actor=SCORES, reason=reason)
    live = await live_versions(session, skill.project_id, skill.name)
    if not any(each.state is SkillState.ACTIVE or each.principal == skill.principal for each in live):
        own = tables.Skill.principal == skill.principal
        await _bring_back(session, await _replaced_by(session, skill, own), rev, SCORES)


async def _bring_back(session: AsyncSession, former: tables.Skill | None, rev: int, actor: str) -> None:
    if former is not None:
        state = state_to_restore(former)
        await move(session, former, state, rev, actor=actor, reason="its successor was withdrawn")


async def _replaced_by(
    session: AsyncSession, skill: tables.Skill, which: ColumnElement[bool]
) -> tables.Skill | None:
    """The newest of these versions that this one superseded, preferably one that was active."""
    row = tables.Skill
    was_active = or_(row.former.is_(None), row.former == SkillState.ACTIVE)
    return await session.scalar(
        select(row)
        .where(
            row.project_id == skill.project_id,
            row.name == skill.name,
            row.version < skill.version,
            row.state == SkillState.SUPERSEDED,
            row.moved_by != ADMISSION,
            which,
            row.violations == 0,
            ~row.held,
        )
        .order_by(was_active.desc(), row.version.desc())
        .limit(1)
        .execution_options(populate_existing=True)
    )
