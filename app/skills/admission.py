"""Decides the state that a new skill starts in, by the policy of its project and by what serves already."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.calls.skill_guard import SkillManifest, widenings
from app.apis.catalog import Catalog, with_builtins
from app.db import skill_evidence, skill_moves, skills, tables
from app.db.skills import NewSkill, StartingState
from app.db.tables import LIVE_SKILLS, ReleaseState, SkillState
from app.projects import store as projects
from app.projects.settings import SkillPolicy

_IMPORTED = "it was imported: it waits for a person"
_LATEST = 5  # tasks by which a version has proved itself, or no longer
_ON_TRIAL = StartingState(SkillState.PROBATION, "until the trial of its release is over")


def stored_manifest(skill: tables.Skill | NewSkill) -> SkillManifest:
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


async def admit(
    session: AsyncSession,
    project_id: UUID,
    new: NewSkill,
    catalog: Catalog | None = None,
    *,
    actor: str = skill_moves.SERVER,
) -> tables.Skill:
    """Add the next version of a name, in the state that the project's policy gives it, as the actor's.

    If the version that the principal's tasks are offered has the same source, it is returned and nothing is
    written. If that version has proved itself, the new one waits, superseded, for a good score of its task: see
    `let_in`. Versions whose operations are no longer those of the catalog serve nobody, and are superseded. If the
    name was retired by hand, the new version is stored as retired.
    """
    rev = await skill_moves.next_rev(session, project_id)  # first: it waits for a rejection that is being written
    rejected = await _rejection(session, new)
    policy = projects.settings_of(await projects.by_id(session, project_id)).skills
    openly = policy == "open" and rejected is None
    if openly and not await _is_on_trial(session, project_id, new):
        return await skills.add(session, project_id, new, actor)
    every = await skill_moves.live_versions(session, project_id, new.name)
    obsolete = [each for each in every if _is_obsolete(each, catalog)]
    current = [each for each in every if each not in obsolete]
    live, replaceable = await _beside(session, project_id, current, new)
    own = [each for each in live if each.principal == new.principal]
    served = serving(live, new.principal)
    retired = None if every else await skills.retired_by_hand(session, project_id, new.name)
    former = next((each for each in [served, *own, retired] if each and each.source == new.source), None)
    if former is not None:
        return former
    wider = widenings(stored_manifest(new), stored_manifest(served)) if served else []
    start = _ON_TRIAL if openly else starting_state(policy, new.taint, wider)
    start = msgspec.structs.replace(start, actor=actor)
    if out := rejected or (skills.RETIRED_NAME if retired else None):
        start = msgspec.structs.replace(out, held=start.held, former=start.state)
        return await skills.insert(session, project_id, new, rev, start)
    skill = await _start(session, project_id, new, rev, start, None if openly else served)
    if skill.state in LIVE_SKILLS and not skill.held:
        await skill_moves.supersede(session, obsolete, skill, rev)
    if skill.state in LIVE_SKILLS:
        await _replace_unseen(session, replaceable, skill, rev)
    return skill


async def admit_import(
    session: AsyncSession, project_id: UUID, new: NewSkill, actor: str
) -> tuple[tables.Skill, bool]:
    """Add a skill that no task here wrote. Under any policy, nobody is offered it until it is approved.

    A version of its name with the same source is returned instead, and False.
    """
    rev = await skill_moves.next_rev(session, project_id)
    versions = await skills.versions(session, project_id, new.name)
    if (same := next((each for each in versions if each.source == new.source), None)) is not None:
        return same, False
    start = StartingState(SkillState.QUARANTINED, _IMPORTED, held=True, actor=actor)
    live = any(each.state in LIVE_SKILLS for each in versions)
    if not live and await skills.retired_by_hand(session, project_id, new.name):
        start = msgspec.structs.replace(skills.RETIRED_NAME, held=True, actor=actor, former=start.state)
    return await skills.insert(session, project_id, new, rev, start), True


async def _start(
    session: AsyncSession,
    project_id: UUID,
    new: NewSkill,
    rev: int,
    start: StartingState,
    served: tables.Skill | None,
) -> tables.Skill:
    """Insert it. If it has to wait and its source waits already, that version waits for this task's score."""
    same = await skills.last_of_source(session, project_id, new)
    waiting = same if same and is_waiting(same) else None
    has_to = bool(waiting and waiting.state is SkillState.RETIRED)
    has_to = has_to or bool(served and await has_proved_itself(session, served))
    if start.held or not has_to:
        return await skills.insert(session, project_id, new, rev, start)
    if waiting:
        waiting.task_id, waiting.release_id = new.task_id, new.release_id
        await session.flush()
        return waiting
    reason = "the present version has proved itself: it waits for a good score of its task"
    out = StartingState(SkillState.SUPERSEDED, reason, actor=skill_moves.ADMISSION, former=start.state)
    return await skills.insert(session, project_id, new, rev, out)


async def let_in(session: AsyncSession, skill_id: UUID) -> None:
    """Offer a version whose task was scored well and that waits for this, or was withdrawn for a bad score.

    It goes on waiting while the version that its principal's tasks are offered has proved itself, and while its
    release is rejected.
    """
    skill, rev = await skill_moves.locked(session, skill_id)
    every = await skill_moves.live_versions(session, skill.project_id, skill.name)
    live, replaceable = await _beside(session, skill.project_id, every, skill)
    served = serving(live, skill.principal)
    if not is_waiting(skill) or not await has_proved_itself(session, skill) or await _rejection(session, skill):
        return
    if served is None or not await has_proved_itself(session, served):
        start, reason = skill_moves.state_to_restore(skill), "the task that wrote it was scored well"
        await skill_moves.move(session, skill, start, rev, reason=reason)
        await _replace_unseen(session, replaceable, skill, rev)


def is_waiting(skill: tables.Skill) -> bool:
    """Whether a good score of its task may bring it in."""
    out = (skill.state, skill.moved_by)
    return out in ((SkillState.SUPERSEDED, skill_moves.ADMISSION), (SkillState.RETIRED, skill_moves.SCORES))


async def has_proved_itself(session: AsyncSession, skill: tables.Skill) -> bool:
    """Whether most of the latest tasks that wrote or used it succeeded."""
    return (await skill_evidence.latest_outcomes(session, skill, _LATEST)).mostly_good


def _is_obsolete(skill: tables.Skill, catalog: Catalog | None) -> bool:
    return catalog is not None and bool(stored_manifest(skill).not_in(with_builtins(catalog)))


async def _beside(
    session: AsyncSession, project_id: UUID, live: Sequence[tables.Skill], written: tables.Skill | NewSkill
) -> tuple[Sequence[tables.Skill], Sequence[tables.Skill]]:
    """The versions that tasks like the one that wrote it see, and those that it may replace.

    What a canary's tasks write concerns nobody else until its trial is over.
    """
    canary = await projects.canary_of(session, project_id)
    if canary is None:
        return live, live
    public = [each for each in live if each.release_id != canary.id or each.state is SkillState.ACTIVE]
    if written.release_id != canary.id:
        return public, public
    own = [each for each in live if each not in public and each.principal == written.principal]
    return [*public, *own], own


async def _replace_unseen(
    session: AsyncSession, live: Sequence[tables.Skill], skill: tables.Skill, rev: int
) -> None:
    """Supersede the versions of its principal that it hides from everybody."""
    keep = serving(live, None)
    own = [each for each in live if each.principal == skill.principal and each is not keep]
    unseen = [each for each in own if each.held == skill.held and each.state is not SkillState.ACTIVE]
    await skill_moves.supersede(session, unseen, skill, rev)


async def _is_on_trial(session: AsyncSession, project_id: UUID, new: NewSkill) -> bool:
    canary = await projects.canary_of(session, project_id)
    return canary is not None and canary.id == new.release_id


async def _rejection(session: AsyncSession, skill: tables.Skill | NewSkill) -> StartingState | None:
    """Given if the skill's release was rejected: its task went on, or its version waited for a score."""
    release = None if skill.release_id is None else await session.get(tables.Release, skill.release_id)
    if release is None or release.state is not ReleaseState.REJECTED:
        return None
    reason = f"its release {release.number} was rejected"
    return StartingState(SkillState.RETIRED, reason, actor=skill_moves.CANARY)


async def is_offered(session: AsyncSession, skill: tables.Skill, principal: str) -> bool:
    """Whether it is the version of its name that tasks of the principal are offered."""
    live = await skill_moves.live_versions(session, skill.project_id, skill.name)
    served = serving(live, principal)
    return served is not None and served.id == skill.id


def serving(live: Sequence[tables.Skill], principal: str | None) -> tables.Skill | None:
    """The live version of one name that a principal's tasks are offered; None: those of principals without any."""
    offered = [each for each in live if not each.held]
    seen = [each for each in offered if each.state is SkillState.ACTIVE]
    if not seen:
        trials = [each for each in offered if each.state is SkillState.PROBATION]
        seen = sorted(trials, key=lambda each: each.version)[:1]
    seen += [each for each in offered if principal is not None and each.principal == principal]
    return max(seen, key=lambda each: each.version, default=None)
