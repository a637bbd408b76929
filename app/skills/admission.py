"""The states of a skill: the one that a new skill starts in, by the policy of its project and by what serves
already, and the rule by which evidence moves it to the next or takes it back.

`tables.SKILL_MOVES` has the moves that there are, `moves` carries them out.
"""

from collections.abc import Iterator, Sequence
from math import comb
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.calls.skill_guard import SkillManifest, widenings
from app.apis.catalog import Catalog, with_builtins
from app.base.values import GOOD
from app.db import tables
from app.db.tables import LIVE_SKILLS, NEXT_SKILL_STATE, ReleaseState, SkillState
from app.projects import store as projects
from app.projects.settings import SkillPolicy
from app.skills import evidence as skill_evidence
from app.skills import moves
from app.skills import store as skills
from app.skills.evidence import Outcomes, SkillEvidence
from app.skills.store import NewSkill, StartingState

USES, PRINCIPALS = 3, 2  # that a skill needs for its next state
_CHANCE, _HARMFUL = 0.2, 0.01  # below which a skill is worse, or does harm
_LATEST = 5  # tasks by which a version has proved itself, or no longer
_JUDGED = 10  # tasks with a skill, the latest ones
_IMPORTED = "it was imported: it waits for a person"
_ON_TRIAL = StartingState(SkillState.PROBATION, "until the trial of its release is over")


class Standing(msgspec.Struct, frozen=True):
    """The state that a skill has earned, and what it lacks for it."""

    state: SkillState
    missing: tuple[str, ...] = ()

    @property
    def earned(self) -> bool:
        return not self.missing


def standing(state: SkillState, principal: str, evidence: SkillEvidence, policy: SkillPolicy) -> Standing:
    """The next state of a skill, and what is missing for it. Its present state if there is no next one."""
    goal = NEXT_SKILL_STATE.get(state)
    if goal is None:
        return Standing(state, ("it has no next state",))
    if policy == "review":
        return Standing(goal, ("a person's approval",))
    return Standing(goal, tuple(_missing(state, principal, evidence)))


def _missing(state: SkillState, principal: str, evidence: SkillEvidence) -> Iterator[str]:
    if evidence.violations:
        yield "a person's approval, because it attempted calls beyond its manifest"
    if evidence.replays_failed:
        yield "a person's approval, because a replay went another way"
    elif not evidence.replays_matched:
        yield "a replay"
    if evidence.maker_score is None:
        yield "a score of the task that wrote it, by others than its key"
    elif evidence.maker_score < GOOD:
        yield "a good score of the task that wrote it"
    yield from _missing_uses(state, principal, evidence)
    with_it, without_it = evidence.with_it.rate, evidence.without_it.rate
    if evidence.is_randomized:
        worse = is_worse(evidence.offered, evidence.withheld)
    else:
        worse = with_it is not None and without_it is not None and with_it < without_it
    if worse:
        yield "an outcome no worse than without it"


def _missing_uses(state: SkillState, principal: str, evidence: SkillEvidence) -> Iterator[str]:
    good = {who: each.successes for who, each in evidence.uses.items() if each.successes}
    if state is SkillState.QUARANTINED:
        good = {who: count for who, count in good.items() if who == principal}
    elif evidence.others:
        good.pop(principal, None)
        if len(good) < PRINCIPALS:
            yield f"{PRINCIPALS - len(good)} more principals that used it successfully"
    if (count := sum(good.values())) < USES:
        yield f"{USES - count} more successful uses"


def is_worse(offered: Outcomes, withheld: Outcomes) -> bool:
    """Whether tasks that are offered it succeed more seldom, by more than chance explains in one of five cases."""
    return chance_of_so_few(offered, withheld) < _CHANCE


def is_harmful(with_it: Outcomes, without_it: Outcomes) -> bool:
    """Whether so few successes would come by chance in less than one of a hundred cases, were it of no effect."""
    return chance_of_so_few(with_it, without_it) < _HARMFUL


def chance_of_so_few(with_it: Outcomes, without_it: Outcomes) -> float:
    """The probability of so few successes with a skill, were it of no effect.

    By the hypergeometric distribution.

    >>> [round(chance_of_so_few(Outcomes(1, 2), Outcomes(good, 3 - good)), 3) for good in (3, 1)]
    [0.2, 0.8]
    """
    good, bad = with_it.successes + without_it.successes, with_it.failures + without_it.failures
    if with_it.total <= without_it.total:  # the sum over the smaller of the two has few terms
        tail = sum(comb(good, few) * comb(bad, with_it.total - few) for few in range(with_it.successes + 1))
    else:
        many = range(without_it.successes, without_it.total + 1)
        tail = sum(comb(good, each) * comb(bad, without_it.total - each) for each in many)
    return tail / comb(good + bad, min(with_it.total, without_it.total))


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
    actor: str = moves.SERVER,
) -> tables.Skill:
    """Add the next version of a name, in the state that the project's policy gives it, as the actor's.

    If the version that the principal's tasks are offered has the same source, it is returned and nothing is
    written. If that version has proved itself, the new one waits, superseded, for a good score of its task: see
    `let_in`. Versions whose operations are no longer those of the catalog serve nobody, and are superseded. If the
    name was retired by hand, the new version is stored as retired.
    """
    rev = await moves.next_rev(session, project_id)  # first: it waits for a rejection that is being written
    rejected = await _rejection(session, new)
    policy = projects.settings_of(await projects.by_id(session, project_id)).skills
    openly, canary = policy == "open" and rejected is None, await projects.canary_of(session, project_id)
    if openly and (canary is None or canary.id != new.release_id):
        return await skills.add(session, project_id, new, actor)
    every = await moves.live_versions(session, project_id, new.name)
    there = None if catalog is None else with_builtins(catalog)
    obsolete = [each for each in every if there is not None and stored_manifest(each).not_in(there)]
    current = [each for each in every if each not in obsolete]
    live, replaceable = _beside(canary, current, new)
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
        await moves.supersede(session, obsolete, skill, rev)
    if skill.state in LIVE_SKILLS:
        await _replace_unseen(session, replaceable, skill, rev)
    return skill


async def admit_import(
    session: AsyncSession, project_id: UUID, new: NewSkill, actor: str
) -> tuple[tables.Skill, bool]:
    """Add a skill that no task here wrote. Under any policy, nobody is offered it until it is approved.

    A version of its name with the same source is returned instead, and False.
    """
    rev = await moves.next_rev(session, project_id)
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
    out = StartingState(SkillState.SUPERSEDED, reason, actor=moves.ADMISSION, former=start.state)
    return await skills.insert(session, project_id, new, rev, out)


async def let_in(session: AsyncSession, skill_id: UUID) -> None:
    """Offer a version whose task was scored well and that waits for this, or was withdrawn for a bad score.

    It goes on waiting while the version that its principal's tasks are offered has proved itself, and while its
    release is rejected.
    """
    skill, rev = await moves.locked(session, skill_id)
    every = await moves.live_versions(session, skill.project_id, skill.name)
    live, replaceable = _beside(await projects.canary_of(session, skill.project_id), every, skill)
    served = serving(live, skill.principal)
    if not is_waiting(skill) or not await has_proved_itself(session, skill) or await _rejection(session, skill):
        return
    if served is None or not await has_proved_itself(session, served):
        start, reason = moves.state_to_restore(skill), "the task that wrote it was scored well"
        await moves.move(session, skill, start, rev, reason=reason)
        await _replace_unseen(session, replaceable, skill, rev)


def is_waiting(skill: tables.Skill) -> bool:
    """Whether a good score of its task may bring it in."""
    out = (skill.state, skill.moved_by)
    return out in ((SkillState.SUPERSEDED, moves.ADMISSION), (SkillState.RETIRED, moves.SCORES))


async def has_proved_itself(session: AsyncSession, skill: tables.Skill) -> bool:
    """Whether most of the latest tasks that wrote or used it succeeded."""
    return (await skill_evidence.latest_outcomes(session, skill, _LATEST)).mostly_good


def _beside(
    canary: tables.Release | None, live: Sequence[tables.Skill], written: tables.Skill | NewSkill
) -> tuple[Sequence[tables.Skill], Sequence[tables.Skill]]:
    """The versions that tasks like the one that wrote it see, and those that it may replace.

    What a canary's tasks write concerns nobody else until its trial is over.
    """
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
    await moves.supersede(session, unseen, skill, rev)


async def _rejection(session: AsyncSession, skill: tables.Skill | NewSkill) -> StartingState | None:
    """Given if the skill's release was rejected: its task went on, or its version waited for a score."""
    release = None if skill.release_id is None else await session.get(tables.Release, skill.release_id)
    if release is None or release.state is not ReleaseState.REJECTED:
        return None
    reason = f"its release {release.number} was rejected"
    return StartingState(SkillState.RETIRED, reason, actor=moves.CANARY)


async def is_offered(session: AsyncSession, skill: tables.Skill, principal: str) -> bool:
    """Whether it is the version of its name that tasks of the principal are offered."""
    live = await moves.live_versions(session, skill.project_id, skill.name)
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


async def judge(session: AsyncSession, skill: tables.Skill) -> tuple[SkillEvidence, Standing]:
    """The evidence about a skill, and what it lacks for the next state."""
    evidence = await skill_evidence.of_skill(session, skill)
    if skill.held and skill.state is SkillState.QUARANTINED:
        return evidence, Standing(SkillState.PROBATION, ("a person's approval",))
    if skill.task_id is None and (goal := NEXT_SKILL_STATE.get(skill.state)):
        return evidence, Standing(goal, ("a person's approval, because there is no task that wrote it",))
    trial = skill.release_id if skill.state in NEXT_SKILL_STATE else None
    release = await session.get(tables.Release, trial) if trial else None
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


async def _promote(session: AsyncSession, skill_id: UUID) -> None:
    """Decide again under the project's lock: another process may have moved it."""
    skill, rev = await moves.locked(session, skill_id)
    evidence, found = await judge(session, skill)
    if not found.earned:
        return
    about = {"reason": "the evidence is for it", "evidence": msgspec.to_builtins(evidence)}
    if found.state is SkillState.ACTIVE:
        await moves.activate(session, skill, rev, **about)
    else:
        await moves.move(session, skill, found.state, rev, **about)


async def _take_back(session: AsyncSession, skill_id: UUID, reason: str) -> None:
    """Move it from active to probation, and out from below, unless most of its latest tasks succeeded."""
    skill, rev = await moves.locked(session, skill_id)
    if skill.state is SkillState.ACTIVE:
        await moves.move(session, skill, SkillState.PROBATION, rev, reason=reason)
    elif skill.state in LIVE_SKILLS and not skill.held and not await has_proved_itself(session, skill):
        await moves.withdraw_harmful(session, skill, rev, reason)


async def _policy(session: AsyncSession, skill: tables.Skill) -> SkillPolicy:
    return projects.settings_of(await projects.by_id(session, skill.project_id)).skills
