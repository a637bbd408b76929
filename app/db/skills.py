"""Skills in the database. Every write takes the project's next `skill_rev`, which caches use to follow the table.

The counter row serializes the writers of one project, so that revisions become visible in order.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.db.models import SKILL_MOVES, SkillState
from app.db.page import Page, read_page
from app.errors import ConflictError, NotFoundError


class NewSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A function that passed its checks; see `models.Skill`."""

    name: str
    signature: str
    source: str
    apis: list[str]
    instruction: str
    slots: list[str] = []
    scenario: str | None = None
    task_id: UUID | None = None
    release_id: UUID | None = None
    embedder: str | None = None
    query_vector: bytes | None = None
    source_vector: bytes | None = None


class SkillFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a listing; None matches everything."""

    project_id: UUID | None = None
    state: SkillState | None = None
    name: str | None = None
    scenario: str | None = None
    api: str | None = None  # "app.operation", or an app: all of its operations


async def add(session: AsyncSession, project_id: UUID, new: NewSkill) -> models.Skill:
    """Add the next version of a name and supersede the active one.

    If the name was retired by hand, the new version is stored as retired, until one of them is restored.
    If the current version has the same source, it is returned and nothing is written.
    """
    rev = await next_rev(session, project_id)
    active = await _in_state(session, project_id, new.name, SkillState.ACTIVE)
    former = active or await _in_state(session, project_id, new.name, SkillState.RETIRED)
    if former is not None and former.source == new.source:
        return former
    await _supersede(session, active, rev)
    state = former.state if former is not None and active is None else SkillState.ACTIVE
    last = await session.scalar(
        select(func.max(models.Skill.version)).where(
            models.Skill.project_id == project_id, models.Skill.name == new.name
        )
    )
    skill = models.Skill(
        project_id=project_id,
        version=(last or 0) + 1,
        state=state,
        rev=rev,
        **msgspec.structs.asdict(new),
    )
    session.add(skill)
    await session.flush()
    return skill


async def changed_since(session: AsyncSession, project_id: UUID, rev: int) -> Sequence[models.Skill]:
    """Changed skills of any state, in the order of the changes. Caches drop those that are not active."""
    query = (
        select(models.Skill)
        .where(models.Skill.project_id == project_id, models.Skill.rev > rev)
        .order_by(models.Skill.rev, models.Skill.version)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(query)).all()


async def get(session: AsyncSession, skill_id: UUID, project_id: UUID | None = None) -> models.Skill:
    """Raises NotFoundError also for a skill of another project than the one given."""
    skill = await session.get(models.Skill, skill_id, populate_existing=True)
    if skill is None or project_id not in (None, skill.project_id):
        raise NotFoundError(f"no skill has the id {skill_id}; GET /v1/skills lists them")
    return skill


async def versions(session: AsyncSession, project_id: UUID, name: str) -> Sequence[models.Skill]:
    """Newest first."""
    query = (
        select(models.Skill)
        .where(models.Skill.project_id == project_id, models.Skill.name == name)
        .order_by(models.Skill.version.desc())
    )
    return (await session.scalars(query)).all()


async def made_by(session: AsyncSession, task_id: UUID) -> Sequence[models.Skill]:
    """The skills that the task wrote, in the order they were stored."""
    query = select(models.Skill).where(models.Skill.task_id == task_id).order_by(models.Skill.rev)
    return (await session.scalars(query)).all()


async def page(
    session: AsyncSession, only: SkillFilter, *, cursor: str | None = None, limit: int = 50
) -> Page[models.Skill]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    skill = models.Skill
    query = select(skill)
    for column, value in (
        (skill.project_id, only.project_id),
        (skill.state, only.state),
        (skill.name, only.name),
        (skill.scenario, only.scenario),
    ):
        if value is not None:
            query = query.where(column == value)
    if only.api is not None:
        each = func.unnest(skill.apis).column_valued("each")
        named = (each == only.api) | (func.split_part(each, ".", 1) == only.api)
        query = query.where(select(each).where(named).correlate(skill).exists())
    return await read_page(session, query, skill, cursor, limit)


async def retire(session: AsyncSession, skill_id: UUID) -> models.Skill:
    """Stop offering a skill, until `restore`. Raises NotFoundError and ConflictError."""
    skill, rev = await _locked(session, skill_id, SkillState.RETIRED)
    return await _move(session, skill, SkillState.RETIRED, rev)


async def restore(session: AsyncSession, skill_id: UUID) -> models.Skill:
    """Offer a skill again, in place of the active version. Raises NotFoundError and ConflictError."""
    skill, rev = await _locked(session, skill_id, SkillState.ACTIVE)
    active = await _in_state(session, skill.project_id, skill.name, SkillState.ACTIVE)
    await _supersede(session, active, rev)
    return await _move(session, skill, SkillState.ACTIVE, rev)


async def delete(session: AsyncSession, skill_id: UUID) -> models.Skill:
    """Delete the source permanently; the row stays for references. Raises NotFoundError and ConflictError."""
    skill, rev = await _locked(session, skill_id, SkillState.DELETED)
    skill.source, skill.embedder, skill.query_vector, skill.source_vector = "", None, None, None
    return await _move(session, skill, SkillState.DELETED, rev)


async def without_vectors(
    session: AsyncSession, project_id: UUID, embedder: str, limit: int = 100
) -> Sequence[models.Skill]:
    """Active skills without vectors of this embedder, oldest first."""
    query = (
        select(models.Skill)
        .where(
            models.Skill.project_id == project_id,
            models.Skill.state == SkillState.ACTIVE,
            models.Skill.embedder.is_distinct_from(embedder),
        )
        .order_by(models.Skill.rev)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def set_vectors(
    session: AsyncSession, skill_id: UUID, embedder: str, query_vector: bytes, source_vector: bytes
) -> None:
    """Store the vectors of a skill, if it is still active."""
    skill, rev = await _locked(session, skill_id)
    if skill.state is SkillState.ACTIVE:
        skill.embedder, skill.query_vector, skill.source_vector = embedder, query_vector, source_vector
        skill.rev = rev
        await session.flush()


async def next_rev(session: AsyncSession, project_id: UUID) -> int:
    """Take the next revision of the project's skills. Its other writers wait until this transaction ends."""
    rev = await session.scalar(
        update(models.Project)
        .where(models.Project.id == project_id)
        .values(skill_rev=models.Project.skill_rev + 1)
        .returning(models.Project.skill_rev)
        .execution_options(synchronize_session=False)
    )
    if rev is None:
        raise NotFoundError(f"no project has the id {project_id}")
    return rev


async def _locked(
    session: AsyncSession, skill_id: UUID, goal: SkillState | None = None
) -> tuple[models.Skill, int]:
    """The skill, after waiting for its project's other writers. ConflictError if it cannot become `goal`."""
    project_id = (await get(session, skill_id)).project_id
    rev = await next_rev(session, project_id)
    skill = await get(session, skill_id)
    if goal is not None and goal not in SKILL_MOVES[skill.state]:
        raise ConflictError(f"skill {skill.name} version {skill.version} is {skill.state}: it cannot be {goal}")
    return skill, rev


async def _in_state(session: AsyncSession, project_id: UUID, name: str, state: SkillState) -> models.Skill | None:
    """The newest version in that state."""
    return await session.scalar(
        select(models.Skill)
        .where(
            models.Skill.project_id == project_id,
            models.Skill.name == name,
            models.Skill.state == state,
        )
        .order_by(models.Skill.version.desc())
        .limit(1)
        .execution_options(populate_existing=True)
    )


async def _supersede(session: AsyncSession, former: models.Skill | None, rev: int) -> None:
    if former is not None:
        await _move(session, former, SkillState.SUPERSEDED, rev)


async def _move(session: AsyncSession, skill: models.Skill, state: SkillState, rev: int) -> models.Skill:
    skill.state, skill.rev = state, rev
    await session.flush()
    return skill
