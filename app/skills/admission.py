"""Decides the state that a new skill starts in, by the policy of its project."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, projects, releases, skill_moves, skills
from app.db.models import ReleaseState, SkillState
from app.db.skills import NewSkill, StartingState
from app.gateway.skill_manifest import SkillManifest, widenings
from app.project.project_settings import SkillPolicy


def stored_manifest(skill: models.Skill | NewSkill) -> SkillManifest:
    """The manifest of a skill. Skills of earlier versions may pass any arguments."""
    if skill.manifest is None:
        return SkillManifest.unrestricted(skill.apis)
    return msgspec.convert(skill.manifest, SkillManifest)


def starting_state(policy: SkillPolicy, taint: str, wider: Sequence[str]) -> StartingState:
    """Where a skill starts. Pure.

    `wider` is what its manifest permits beyond the version that its principal's tasks are offered now.
    """
    if policy == "open":
        return StartingState(SkillState.ACTIVE)
    if wider:
        reason = f"it may do more than the present version: {'; '.join(wider)}"
        return StartingState(SkillState.QUARANTINED, reason, held=True)
    if taint:
        return StartingState(SkillState.QUARANTINED, f"it was written after text from outside: {taint}")
    if policy == "review":
        return StartingState(SkillState.QUARANTINED, "it waits for a person")
    return StartingState(SkillState.PROBATION, "it has to prove itself")


async def admit(session: AsyncSession, project_id: UUID, new: NewSkill) -> models.Skill:
    """Add the next version of a name, in the state that the project's policy gives it.

    If the version that the principal's tasks are offered has the same source, it is returned and nothing is
    written. If the name was retired by hand, the new version is stored as retired.
    """
    rev = await skill_moves.next_rev(session, project_id)  # first: it waits for a rejection that is being written
    rejected = await _rejection(session, new)
    policy = projects.settings_of(await projects.by_id(session, project_id)).skills
    if policy == "open" and rejected is None:
        return await skills.add(session, project_id, new)
    live = await skill_moves.live_versions(session, project_id, new.name)
    own = [each for each in live if each.principal == new.principal]
    served = serving(live, new.principal)
    retired = None if live else await skills.retired_by_hand(session, project_id, new.name)
    former = next((each for each in [served, *own, retired] if each and each.source == new.source), None)
    if former is not None:
        return former
    wider = widenings(stored_manifest(new), stored_manifest(served)) if served else []
    start = starting_state(policy, new.taint, wider)
    if rejected is not None or retired is not None:
        out = rejected or skills.RETIRED_NAME
        start = msgspec.structs.replace(out, held=start.held, former=start.state)
        return await skills.insert(session, project_id, new, rev, start)
    skill = await skills.insert(session, project_id, new, rev, start)
    keep = serving(live, None)
    unseen = [each for each in own if each.held == skill.held and each.state is not SkillState.ACTIVE]
    await skill_moves.supersede(session, [each for each in unseen if each is not keep], skill, rev)
    return skill


async def _rejection(session: AsyncSession, new: NewSkill) -> StartingState | None:
    """Given if the task of the skill went on after its release was rejected."""
    release = None if new.release_id is None else await releases.get(session, new.release_id)
    if release is None or release.state is not ReleaseState.REJECTED:
        return None
    reason = f"its release {release.number} was rejected"
    return StartingState(SkillState.RETIRED, reason, actor=skill_moves.CANARY)


def serving(live: Sequence[models.Skill], principal: str | None) -> models.Skill | None:
    """The live version of one name that a principal's tasks are offered; None: those of principals without any."""
    offered = [each for each in live if not each.held]
    seen = [each for each in offered if each.state is SkillState.ACTIVE]
    if not seen:
        trials = [each for each in offered if each.state is SkillState.PROBATION]
        seen = sorted(trials, key=lambda each: each.version)[:1]
    seen += [each for each in offered if principal is not None and each.principal == principal]
    return max(seen, key=lambda each: each.version, default=None)
