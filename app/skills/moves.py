"""Changes of skills' states: of one version or name; withdrawals, which bring back the versions that these had
replaced; and the sets that releases serve with, which are restored. Each change takes the project's next
`skill_rev`, is audited, and states its reason.

The counter row serializes the writers of one project, so that revisions become visible in order.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, Text, Uuid, all_, and_, bindparam, or_, select, type_coerce, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.values import Json
from app.db import tables
from app.db.queries import in_array
from app.db.tables import LIVE_SKILLS, NEXT_SKILL_STATE, SKILL_MOVES, AuditAction, ReleaseState, SkillState
from app.projects import audit

SERVER = "server"  # the actor of automatic changes
CANARY = "canary"  # the actor that withdraws the skills of a rejected canary
WATCH = "watch"  # of a release that was rolled back
SCORES = "scores"  # of a skill that did harm
ADMISSION = "admission"  # of a version that waits while another one has proved itself
CHANGES = "changes"  # of a skill that an API change may have broken
PRACTICE = "practice"  # of a skill that a run of practice wrote
WITHDRAWERS = (CANARY, WATCH, SCORES, CHANGES)
_NOT_HELD = (SkillState.PROBATION, SkillState.ACTIVE, SkillState.DELETED)
_RESTORED = "an earlier set of skills was restored"
_RESTORABLE = (SkillState.SUPERSEDED, SkillState.RETIRED)


async def next_rev(session: AsyncSession, project_id: UUID) -> int:
    """Take the next revision of the project's skills. Its other writers wait until this transaction ends."""
    rev = await session.scalar(
        update(tables.Project)
        .where(tables.Project.id == project_id)
        .values(skill_rev=tables.Project.skill_rev + 1)
        .returning(tables.Project.skill_rev)
        .execution_options(synchronize_session=False)
    )
    if rev is None:
        raise NotFoundError(f"no project has the id {project_id}")
    return rev


async def locked(session: AsyncSession, skill_id: UUID) -> tuple[tables.Skill, int]:
    """The skill, after waiting for its project's other writers, and the next revision. Raises NotFoundError."""
    skill = await session.get(tables.Skill, skill_id)
    if skill is None:
        raise NotFoundError(f"no skill has the id {skill_id}; GET /v1/skills lists them")
    rev = await next_rev(session, skill.project_id)
    await session.refresh(skill)
    return skill, rev


async def move(
    session: AsyncSession,
    skill: tables.Skill,
    state: SkillState,
    rev: int,
    *,
    actor: str = SERVER,
    reason: str = "",
    evidence: Mapping[str, Json] | None = None,
) -> tables.Skill:
    """Give a skill a state, and audit it. One that is held stays so in quarantine, and until it returns there.

    Raises ConflictError if SKILL_MOVES has no such move.
    """
    before = skill.state
    if state not in SKILL_MOVES[before]:
        raise ConflictError(f"skill {skill.name} version {skill.version} is {before}: it cannot be {state}")
    if before in LIVE_SKILLS and state not in LIVE_SKILLS:
        skill.former = before
    skill.state, skill.rev, skill.reason, skill.moved_by = state, rev, reason, actor
    skill.held = skill.held and state not in _NOT_HELD
    await session.flush()
    await record(session, skill, before, actor, reason, evidence)
    return skill


async def record(
    session: AsyncSession,
    skill: tables.Skill,
    before: SkillState | None,
    actor: str,
    reason: str,
    evidence: Mapping[str, Json] | None = None,
) -> None:
    """Write a skill's present state to the audit log."""
    detail: dict[str, Json] = {
        "skill": str(skill.id),
        "name": skill.name,
        "version": skill.version,
        "from": before,
        "to": skill.state,
        "reason": reason,
    }
    if skill.held:
        detail["held"] = True
    if evidence:
        detail["evidence"] = dict(evidence)
    await audit.add(session, skill.project_id, None, actor, AuditAction.SKILL_MOVED, detail)


async def fresh(session: AsyncSession, query: Select[tables.Skill]) -> list[tables.Skill]:
    """As the rows are now, also those that the session has read before."""
    return list(await session.scalars(query.execution_options(populate_existing=True)))


async def live_versions(session: AsyncSession, project_id: UUID, name: str) -> list[tables.Skill]:
    """The versions that may be offered to someone, newest first."""
    skill = tables.Skill
    own = select(skill).where(skill.project_id == project_id, skill.name == name, skill.state.in_(LIVE_SKILLS))
    return await fresh(session, own.order_by(skill.version.desc()))


async def callers(session: AsyncSession, project_id: UUID, apis: Sequence[str]) -> list[tables.Skill]:
    """The versions that may be offered to all and call one of these operations, "app.operation"."""
    skill = tables.Skill
    query = select(skill).where(
        skill.project_id == project_id,
        skill.state.in_((SkillState.PROBATION, SkillState.ACTIVE)),
        type_coerce(skill.apis, ARRAY(Text)).overlap(list(apis)),
    )
    return await fresh(session, query.order_by(skill.name, skill.version))


async def activate(
    session: AsyncSession,
    skill: tables.Skill,
    rev: int,
    *,
    actor: str = SERVER,
    reason: str = "",
    evidence: Mapping[str, Json] | None = None,
) -> tables.Skill:
    """Offer a version to all, in place of the active one and of older ones."""
    live = await live_versions(session, skill.project_id, skill.name)
    others = [each for each in live if each.state is SkillState.ACTIVE or each.version < skill.version]
    await supersede(session, others, skill, rev, actor)
    return await move(session, skill, SkillState.ACTIVE, rev, actor=actor, reason=reason, evidence=evidence)


async def supersede(
    session: AsyncSession, replaced: Iterable[tables.Skill], by: tables.Skill, rev: int, actor: str = SERVER
) -> None:
    """Withdraw versions of a name that another one replaces."""
    for each in replaced:
        reason = f"version {by.version} replaced it"
        await move(session, each, SkillState.SUPERSEDED, rev, actor=actor, reason=reason)


def state_to_restore(skill: tables.Skill) -> SkillState:
    """The live state that a skill returns to: the one it left, or quarantine if it is held."""
    return SkillState.QUARANTINED if skill.held else skill.former or SkillState.ACTIVE


async def retire(
    session: AsyncSession, skill_id: UUID, actor: str = SERVER, reason: str = "its name was retired"
) -> tables.Skill:
    """Stop offering any version of a skill's name, until `restore`. Raises NotFoundError and ConflictError."""
    skill, rev = await locked(session, skill_id)
    others = [each for each in await live_versions(session, skill.project_id, skill.name) if each is not skill]
    for each in (skill, *others):
        await move(session, each, SkillState.RETIRED, rev, actor=actor, reason=reason)
    return skill


async def merge(session: AsyncSession, skill_id: UUID, actor: str, into: UUID) -> tables.Skill:
    """Retire a skill in favor of another one of its project, which does the same and is offered to tasks.

    Raises as `retire`, and ConflictError for another version of its name, or a skill that is not offered.
    """
    skill, _ = await locked(session, skill_id)
    kept = await session.get(tables.Skill, into, populate_existing=True)
    if kept is None or kept.project_id != skill.project_id:
        raise NotFoundError(f"the project has no skill with the id {into}; GET /v1/skills lists them")
    if kept.name == skill.name:
        raise ConflictError(
            f"both are versions of {skill.name}, and a name is retired as a whole: name another skill"
        )
    if kept.state not in LIVE_SKILLS or kept.held:
        state = "held" if kept.held else kept.state
        raise ConflictError(f"skill {kept.name} version {kept.version} is {state}: tasks would be offered neither")
    return await retire(session, skill_id, actor, f"{kept.name} does the same")


async def restore(session: AsyncSession, skill_id: UUID, actor: str = SERVER) -> tables.Skill:
    """Give a superseded or retired version the state that it had, in place of every other version.

    One that is held replaces none: it is offered to nobody. Raises NotFoundError and ConflictError.
    """
    skill, rev = await locked(session, skill_id)
    if skill.state not in _RESTORABLE:
        raise ConflictError(
            f"skill {skill.name} version {skill.version} is {skill.state}: only a skill that is superseded or "
            "retired can be restored"
        )
    if not skill.held:
        await supersede(session, await live_versions(session, skill.project_id, skill.name), skill, rev, actor)
    return await move(session, skill, state_to_restore(skill), rev, actor=actor, reason="it was restored")


async def delete(session: AsyncSession, skill_id: UUID, actor: str = SERVER) -> tables.Skill:
    """Delete the source permanently, and the words of its task; the row stays for references.

    Raises NotFoundError and ConflictError.
    """
    skill, rev = await locked(session, skill_id)
    skill.source, skill.embedder, skill.query_vector, skill.source_vector = "", None, None, None
    skill.instruction, skill.slots, skill.taint, skill.principal = "", [], "", ""
    return await move(session, skill, SkillState.DELETED, rev, actor=actor, reason="it was deleted")


async def approve(session: AsyncSession, skill_id: UUID, actor: str) -> tables.Skill:
    """Move a skill from quarantine to probation, or from probation to active.

    Raises NotFoundError, and ConflictError if it is in neither.
    """
    skill, rev = await locked(session, skill_id)
    goal = NEXT_SKILL_STATE.get(skill.state)
    if goal is None:
        raise ConflictError(
            f"skill {skill.name} version {skill.version} is {skill.state}: only a skill that is quarantined or on "
            "probation can be approved"
        )
    if goal is SkillState.ACTIVE:
        return await activate(session, skill, rev, actor=actor, reason="it was approved")
    return await move(session, skill, goal, rev, actor=actor, reason="it was approved")


def possible(skill: tables.Skill) -> list[str]:
    """What a person may do with the skill in its state."""
    may: dict[str, Container[SkillState]] = {
        "approve": NEXT_SKILL_STATE,
        "retire": LIVE_SKILLS,
        "restore": _RESTORABLE,
    }
    return [move for move, states in may.items() if skill.state in states]


async def quarantine(session: AsyncSession, skill_id: UUID, reason: str, violations: int) -> tables.Skill:
    """Count calls that a skill attempted beyond its manifest, and offer it to nobody until it is approved.

    One that was taken out meanwhile stays where it is, and is held if it is restored.
    """
    skill, rev = await locked(session, skill_id)
    skill.violations += violations
    if skill.state is not SkillState.DELETED:
        skill.held = True
    if skill.state in LIVE_SKILLS:
        return await move(session, skill, SkillState.QUARANTINED, rev, reason=reason)
    await session.flush()
    await record(session, skill, skill.state, SERVER, reason)
    return skill


async def announce(session: AsyncSession, release_id: UUID, project_id: UUID) -> None:
    """Have the skills that tasks of a release wrote read again: whom they are offered to has changed."""
    skill = tables.Skill
    written = (skill.release_id == release_id, skill.state.in_(LIVE_SKILLS))
    if await session.scalar(select(skill.id).where(*written).limit(1)) is not None:
        rev = await next_rev(session, project_id)
        await session.execute(update(skill).where(*written).values(rev=rev))


async def end_trial(session: AsyncSession, release_id: UUID, project_id: UUID) -> None:
    """Offer to all, as a project wants that offers every skill at once, the newest that a canary's tasks wrote."""
    skill = tables.Skill
    rev = await next_rev(session, project_id)
    tried = (skill.release_id == release_id, skill.state == SkillState.PROBATION)
    for name in await session.scalars(select(skill.name).where(*tried).distinct().order_by(skill.name)):
        live = await live_versions(session, project_id, name)
        newest = next(each for each in live if each.state is SkillState.ACTIVE or each.release_id == release_id)
        if newest.state is SkillState.PROBATION:
            await activate(session, newest, rev, reason="the trial of its release is over")


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
    written = select(skill).where(skill.release_id == release_id, skill.state.in_(LIVE_SKILLS))
    return await fresh(session, written.order_by(skill.name, skill.version))


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


class RestoredSkills(msgspec.Struct, frozen=True):
    """The changes of a project's skills when an earlier set was restored, by name and version."""

    restored: list[tables.Skill]  # offered again
    superseded: list[tables.Skill]  # by a restored version of their name
    withdrawn: list[tables.Skill]  # of other names; the agent may write these again
    deleted: list[tables.Skill]  # of the set, but permanently deleted


async def offered_skills(session: AsyncSession, project_id: UUID) -> dict[UUID, SkillState]:
    """The set of all skills that tasks of the project may be offered, those of a single principal too, with their
    states.
    """
    skill = tables.Skill
    offered = (skill.project_id == project_id, skill.state.in_(LIVE_SKILLS), ~skill.held)
    return {row.id: row.state for row in await session.execute(select(skill.id, skill.state).where(*offered))}


async def restore_set(
    session: AsyncSession, project_id: UUID, wanted: Mapping[UUID, SkillState]
) -> RestoredSkills:
    """Offer exactly these skills of the project, except deleted ones, and give back the states they had.

    A skill that is still offered keeps its state, unless another version of its name is to be active. One that was
    taken back since returns to no higher state than it left. One that attempted a call beyond its manifest, one
    that is held, and one that was withdrawn with its release, which is still rejected, is not offered.
    """
    rev = await next_rev(session, project_id)
    moved = await plan_set(session, project_id, wanted)
    back = {row: min(wanted[row.id], state_to_restore(row), key=LIVE_SKILLS.index) for row in moved.restored}
    for row in (*moved.superseded, *moved.withdrawn):  # superseded, not retired, which only a person does
        await move(session, row, SkillState.SUPERSEDED, rev, reason=_RESTORED)
    active = [row.name for row, state in back.items() if state is SkillState.ACTIVE]
    skill = tables.Skill
    serving = and_(in_array(skill.name, active), skill.state == SkillState.ACTIVE)
    for row in await _unheld(session, project_id, serving):
        await move(session, row, wanted[row.id], rev, reason=_RESTORED)
    for row, state in back.items():
        await move(session, row, state, rev, reason=_RESTORED)
    return moved


async def plan_set(
    session: AsyncSession, project_id: UUID, wanted: Mapping[UUID, SkillState], serving: UUID | None = None
) -> RestoredSkills:
    """What `restore_set` would do now; with the id of a release, once that serves: then it is no longer rejected.

    Reads what changes alone: a library is large.
    """
    skill, release = tables.Skill, tables.Release
    is_live, is_wanted = skill.state.in_(LIVE_SKILLS), in_array(skill.id, wanted)
    unwanted = skill.id != all_(bindparam(None, list(wanted), ARRAY(Uuid)))
    changing = or_(and_(is_live, unwanted), and_(is_wanted, skill.state.not_in(LIVE_SKILLS)))
    known = await _unheld(session, project_id, changing)
    query = select(release.id).where(release.project_id == project_id, release.state == ReleaseState.REJECTED)
    rejected = {*await session.scalars(query)} - {serving}
    away = [row for row in known if row.id not in wanted]
    gone = [row for row in known if row.id in wanted]
    restored = [row for row in gone if _can_return(row, rejected)]
    names = {row.name for row in restored}
    return RestoredSkills(
        restored=restored,
        superseded=[row for row in away if row.name in names],
        withdrawn=[row for row in away if row.name not in names],
        deleted=[row for row in gone if row.state is SkillState.DELETED],
    )


async def _unheld(session: AsyncSession, project_id: UUID, which: ColumnElement[bool]) -> list[tables.Skill]:
    skill = tables.Skill
    query = select(skill).where(skill.project_id == project_id, ~skill.held, which)
    return await fresh(session, query.order_by(skill.name, skill.version))


def _can_return(skill: tables.Skill, rejected: Collection[UUID]) -> bool:
    withdrawn = skill.moved_by in WITHDRAWERS and skill.release_id in rejected
    return skill.state is not SkillState.DELETED and not skill.violations and not withdrawn
