"""What an index reads of a project's skills: all but their sources, in the order of their changes."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ARRAY, Row, Select, Uuid, any_, bindparam, case, func, null, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.database import Handle, Sessions, execute
from app.db.tables import LIVE_SKILLS, ReleaseState

_SOURCES = select(tables.Skill.id, tables.Skill.source).where(
    tables.Skill.id == any_(bindparam("ids", type_=ARRAY(Uuid))),
    tables.Skill.state.in_(LIVE_SKILLS),
    ~tables.Skill.held,
)
_AT_ONCE = 500  # rows decoded before the event loop may do something else


def changes(project_id: UUID, rev: int, embedder: str | None) -> Select[Any]:
    """Skills changed after a revision, in any state, in the order of the changes, with one embedder's vectors.

    After revision 0, those that are offered to someone.
    """
    skill, release = tables.Skill, tables.Release
    query: Any = (
        select(
            skill.id,
            skill.name,
            skill.version,
            skill.signature,
            skill.instruction,
            skill.described,
            skill.slots,
            skill.scenario,
            skill.principal,
            skill.state,
            skill.held,
            skill.rev,
            case((release.state == ReleaseState.CANARY, release.id)).label("canary"),
            case((skill.embedder == embedder, skill.embedder)).label("embedder"),
            case((skill.embedder == embedder, skill.query_vector), else_=null()).label("query_vector"),
            case((skill.embedder == embedder, skill.source_vector), else_=null()).label("source_vector"),
        )
        .outerjoin(release, release.id == skill.release_id)
        .where(skill.project_id == project_id, skill.rev > rev)
        .order_by(skill.rev, skill.version, skill.id)
    )
    offered: Select[Any] = query if rev else query.where(skill.state.in_(LIVE_SKILLS), ~skill.held)
    return offered


async def read_changes(sessions: Sessions, project_id: UUID, rev: int, embedder: str | None) -> Sequence[Row[Any]]:
    """The rows of `changes`. However many there are, the event loop is never held up for long."""
    async with sessions() as session:
        result = await session.stream(changes(project_id, rev, embedder).execution_options(yield_per=_AT_ONCE))
        return [row async for part in result.partitions() for row in part]


async def count_changes(session: AsyncSession, project_id: UUID, rev: int, limit: int) -> int:
    """Of the skills changed after a revision, at most `limit`."""
    skill = tables.Skill
    changed = select(skill.id).where(skill.project_id == project_id, skill.rev > rev).limit(limit)
    return await session.scalar(select(func.count()).select_from(changed.subquery())) or 0


async def rev_before(session: AsyncSession, project_id: UUID, count: int) -> int:
    """The revision after which the last `count` changed skills changed; 0 if there are no others."""
    skill = tables.Skill
    query = (
        select(skill.rev).where(skill.project_id == project_id).order_by(skill.rev.desc()).offset(count).limit(1)
    )
    return await session.scalar(query) or 0


async def has_state(session: AsyncSession, project_id: UUID, rev: int, skill_id: UUID, skill_rev: int) -> bool:
    """Whether the project has reached a revision, and a skill a revision of its own."""
    project, skill = tables.Project, tables.Skill
    query = select(project.skill_rev, skill.rev).join(skill, skill.project_id == project.id)
    found = (await session.execute(query.where(project.id == project_id, skill.id == skill_id))).one_or_none()
    return found is not None and found[0] >= rev and found[1] >= skill_rev


def common_embedder(project_id: UUID) -> Select[Any]:
    """The embedder of most vectors of a project; no row without any."""
    skill = tables.Skill
    return (
        select(skill.embedder)
        .where(skill.project_id == project_id, skill.state.in_(LIVE_SKILLS), skill.embedder.is_not(None))
        .group_by(skill.embedder)
        .order_by(func.count().desc())
        .limit(1)
    )


async def sources(handle: Handle, skill_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Of those that are offered to someone."""
    rows = await execute(handle, _SOURCES, {"ids": list(skill_ids)})
    return {row.id: row.source for row in rows}


async def revs(session: AsyncSession) -> dict[UUID, int]:
    """The latest revision of each project that ever had a skill."""
    project = tables.Project
    query = select(project.id, project.skill_rev).where(project.skill_rev > 0)
    return {row.id: row.skill_rev for row in await session.execute(query)}
