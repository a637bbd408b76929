"""Moves skills between their states, as the evidence about them changes."""

from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, projects, skill_evidence, skill_moves, skills
from app.db.models import NEXT_SKILL_STATE, SkillState
from app.db.skill_evidence import GOOD, SkillEvidence
from app.project.project_settings import SkillPolicy
from app.skills.standing import Standing, standing


async def judge(session: AsyncSession, skill: models.Skill) -> tuple[SkillEvidence, Standing]:
    """The evidence about a skill, and what it lacks for the next state."""
    evidence = await skill_evidence.of_skill(session, skill)
    if skill.held and skill.state is SkillState.QUARANTINED:
        return evidence, Standing(SkillState.PROBATION, ("a person's approval",))
    return evidence, standing(skill.state, skill.principal, evidence, await _policy(session, skill))


async def scored(session: AsyncSession, task_id: UUID, score: float) -> None:
    """Call in the transaction that gave a task its score.

    The active skills of a task with a bad score go back on probation, unless the project offers all at once.
    Skills that have earned it move up.
    """
    for skill in await skills.made_by(session, task_id):
        if score < GOOD and skill.state is SkillState.ACTIVE and await _policy(session, skill) != "open":
            await _demote(session, skill.id, f"the task that wrote it was scored {score:g}")
    for skill in await skills.of_ids(session, await skill_evidence.touched_by(session, task_id)):
        unproven = skill.state in NEXT_SKILL_STATE and not skill.held  # the evidence of others is long
        if unproven and (await judge(session, skill))[1].earned:
            await _promote(session, skill.id)


async def _promote(session: AsyncSession, skill_id: UUID) -> None:
    """Decide again under the project's lock: another process may have moved it."""
    skill, rev = await skill_moves.locked(session, skill_id)
    evidence, found = await judge(session, skill)
    if not found.earned:
        return
    about = {"reason": "the evidence is for it", "evidence": msgspec.to_builtins(evidence)}
    if found.state is SkillState.ACTIVE:
        await skill_moves.activate(session, skill, rev, **about)
    else:
        await skill_moves.move(session, skill, found.state, rev, **about)


async def _demote(session: AsyncSession, skill_id: UUID, reason: str) -> None:
    skill, rev = await skill_moves.locked(session, skill_id)
    if skill.state is SkillState.ACTIVE:
        await skill_moves.move(session, skill, SkillState.PROBATION, rev, reason=reason)


async def _policy(session: AsyncSession, skill: models.Skill) -> SkillPolicy:
    return projects.settings_of(await projects.by_id(session, skill.project_id)).skills
