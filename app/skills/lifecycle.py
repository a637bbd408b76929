"""Moves skills between their states, as the evidence about them changes."""

from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import GOOD
from app.db import skill_evidence, skill_moves, skill_withdrawals, skills, tables
from app.db.skill_evidence import Outcomes, SkillEvidence
from app.db.tables import LIVE_SKILLS, NEXT_SKILL_STATE, ReleaseState, SkillState
from app.projects import store as projects
from app.projects.settings import SkillPolicy
from app.skills.admission import has_proved_itself, is_waiting, let_in
from app.skills.chance import chance_of_so_few
from app.skills.standing import Standing, standing

_JUDGED = 10  # tasks with a skill, the latest ones
_CHANCE = 0.01


async def judge(session: AsyncSession, skill: tables.Skill) -> tuple[SkillEvidence, Standing]:
    """The evidence about a skill, and what it lacks for the next state."""
    evidence = await skill_evidence.of_skill(session, skill)
    if skill.held and skill.state is SkillState.QUARANTINED:
        return evidence, Standing(SkillState.PROBATION, ("a person's approval",))
    if skill.task_id is None and (goal := NEXT_SKILL_STATE.get(skill.state)):
        return evidence, Standing(goal, ("a person's approval, because there is no task that wrote it",))
    release = await _release(session, skill) if skill.state in NEXT_SKILL_STATE else None
    if release is not None and release.state is ReleaseState.CANARY:
        return evidence, Standing(skill.state, (f"the end of the trial of release {release.number}",))
    return evidence, standing(skill.state, skill.principal, evidence, await _policy(session, skill))


async def scored(session: AsyncSession, task_id: UUID, score: float) -> None:
    """Call in the transaction that gave a task its score.

    After a bad score, the skills that the task wrote and those that did harm are taken back, unless the project
    offers all at once: from active to probation, from there out. After a good one, a skill of the task that waits
    for it is let in. Skills that have earned it move up.
    """
    for skill in await skills.made_by(session, task_id):
        if score >= GOOD and is_waiting(skill):
            await let_in(session, skill.id)
        elif score < GOOD and await _policy(session, skill) != "open":
            await _take_back(session, skill.id, f"the task that wrote it was scored {score:g}")
    for skill in await skills.of_ids(session, await skill_evidence.touched_by(session, task_id)):
        if score < GOOD and (reason := await _harm(session, skill)):
            await _take_back(session, skill.id, reason)
        unproven = skill.state in NEXT_SKILL_STATE and not skill.held  # the evidence of others is long
        if unproven and (await judge(session, skill))[1].earned:
            await _promote(session, skill.id)


async def _harm(session: AsyncSession, skill: tables.Skill) -> str | None:
    """What says that tasks do worse with it; None if that may be chance."""
    if skill.state not in LIVE_SKILLS or await _policy(session, skill) == "open":
        return None
    latest = await skill_evidence.latest_outcomes(session, skill, _JUDGED)
    if latest.mostly_good:
        return None
    evidence = await skill_evidence.of_skill(session, skill)
    if evidence.is_randomized:
        with_it, without = evidence.offered, evidence.withheld
        which, others = "that were offered it", "from which it was withheld"
    else:
        with_it, without, which, others = latest, evidence.without_it, "with it", "without it"
    if not is_harmful(with_it, without):
        return None
    failed = f"{with_it.failures} of the {with_it.total} latest tasks {which} failed"
    return f"{failed}, {without.failures} of {without.total} {others}"


def is_harmful(with_it: Outcomes, without_it: Outcomes) -> bool:
    """Whether so few successes would come by chance in less than one of a hundred cases, were it of no effect."""
    return chance_of_so_few(with_it, without_it) < _CHANCE


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


async def _take_back(session: AsyncSession, skill_id: UUID, reason: str) -> None:
    """Move it from active to probation, and out from below, unless most of its latest tasks succeeded."""
    skill, rev = await skill_moves.locked(session, skill_id)
    if skill.state is SkillState.ACTIVE:
        await skill_moves.move(session, skill, SkillState.PROBATION, rev, reason=reason)
    elif skill.state in LIVE_SKILLS and not skill.held and not await has_proved_itself(session, skill):
        await skill_withdrawals.withdraw_harmful(session, skill, rev, reason)


async def _release(session: AsyncSession, skill: tables.Skill) -> tables.Release | None:
    return await session.get(tables.Release, skill.release_id) if skill.release_id else None


async def _policy(session: AsyncSession, skill: tables.Skill) -> SkillPolicy:
    return projects.settings_of(await projects.by_id(session, skill.project_id)).skills
