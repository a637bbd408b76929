"""Skills in the database: written, listed, and read by an index in the order of their changes. Every write takes
the project's next `skill_rev`, by which caches follow the table.
"""

from collections.abc import Collection, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import ARRAY, Row, Select, Text, Uuid, and_, any_, bindparam, case, func, null, or_, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.base.values import Json
from app.db import tables
from app.db.database import Handle, Sessions, execute
from app.db.queries import Page, in_array, read_page
from app.db.tables import LIVE_SKILLS, ReleaseState, SkillState
from app.skills.moves import SERVER, WITHDRAWERS, fresh, live_versions, locked, move, next_rev, record

S = TypeVar("S")

_LATEST_REV = select(tables.Project.skill_rev).where(tables.Project.id == bindparam("project", type_=Uuid))
_SOURCES = select(tables.Skill.id, tables.Skill.source).where(
    tables.Skill.id == any_(bindparam("ids", type_=ARRAY(Uuid))),
    tables.Skill.state.in_(LIVE_SKILLS),
    ~tables.Skill.held,
)
_AT_ONCE = 500  # rows decoded before the event loop may do something else


class NewSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A function that passed its checks; see `tables.Skill`."""

    name: str
    signature: str
    source: str
    apis: list[str]
    instruction: str
    described: bool = False
    slots: list[str] = []
    scenario: str | None = None
    task_id: UUID | None = None
    release_id: UUID | None = None
    principal: str = ""
    taint: str = ""
    manifest: dict[str, Json] | None = None
    embedder: str | None = None
    query_vector: bytes | None = None
    source_vector: bytes | None = None


class StartingState(msgspec.Struct, frozen=True):
    """The state that a skill starts in. One that is held is offered to nobody until a person approves it."""

    state: SkillState
    reason: str = ""
    held: bool = False
    actor: str = SERVER
    former: SkillState | None = None  # of one that starts retired: the state that it would have had


RETIRED_NAME = StartingState(SkillState.RETIRED, "its name was retired")


class SkillFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a listing; None matches everything."""

    project_id: UUID | None = None
    state: SkillState | None = None
    principal: str | None = None
    name: str | None = None
    scenario: str | None = None
    api: str | None = None  # "app.operation", or an app: all of its operations
    held: bool | None = None
    live: bool = False  # only those that are offered, or would be if they were not held
    words: str | None = None  # parts of the name, the instruction or the scenario, in any order


async def add(session: AsyncSession, project_id: UUID, new: NewSkill, actor: str = SERVER) -> tables.Skill:
    """Add the next version of a name and offer it to all at once, in place of the active one.

    If the name was retired by hand, the new version is stored as retired, until one of them is restored.
    If the current version has the same source, it is returned and nothing is written.
    """
    rev = await next_rev(session, project_id)
    live = await live_versions(session, project_id, new.name)
    active = next((each for each in live if each.state is SkillState.ACTIVE), None)
    former = active or await retired_by_hand(session, project_id, new.name)
    if former is not None and former.source == new.source:
        return former
    if former is not None and active is None:
        return await insert(session, project_id, new, rev, RETIRED_NAME)
    for each in live:
        await move(session, each, SkillState.SUPERSEDED, rev, reason="a new version replaced it")
    return await insert(session, project_id, new, rev, StartingState(SkillState.ACTIVE, actor=actor))


async def insert(
    session: AsyncSession, project_id: UUID, new: NewSkill, rev: int, start: StartingState
) -> tables.Skill:
    """Add the next version of a name in a state, and audit it. `rev` is from `next_rev`."""
    last = await session.scalar(
        select(func.max(tables.Skill.version)).where(
            tables.Skill.project_id == project_id, tables.Skill.name == new.name
        )
    )
    skill = tables.Skill(
        project_id=project_id,
        version=(last or 0) + 1,
        state=start.state,
        former=start.former,
        held=start.held,
        reason=start.reason,
        moved_by=start.actor,
        rev=rev,
        **msgspec.structs.asdict(new),
    )
    session.add(skill)
    await session.flush()
    await record(session, skill, None, start.actor, start.reason)
    return skill


async def retired_by_hand(session: AsyncSession, project_id: UUID, name: str) -> tables.Skill | None:
    """The newest version that a person retired."""
    skill = tables.Skill
    return await session.scalar(
        select(skill)
        .where(
            skill.project_id == project_id,
            skill.name == name,
            skill.state == SkillState.RETIRED,
            skill.moved_by.not_in(WITHDRAWERS),
        )
        .order_by(skill.version.desc())
        .limit(1)
        .execution_options(populate_existing=True)
    )


async def last_of_source(session: AsyncSession, project_id: UUID, new: NewSkill) -> tables.Skill | None:
    """The newest version of its name that the same principal's tasks wrote with the same source."""
    skill = tables.Skill
    return await session.scalar(
        select(skill)
        .where(skill.project_id == project_id, skill.name == new.name)
        .where(skill.principal == new.principal, skill.source == new.source)
        .order_by(skill.version.desc())
        .limit(1)
        .execution_options(populate_existing=True)
    )


async def latest_rev(handle: Handle, project_id: UUID) -> int:
    """The latest revision: no change up to it becomes visible later. 0 without a project."""
    return (await execute(handle, _LATEST_REV, {"project": project_id})).scalar_one_or_none() or 0


async def get(session: AsyncSession, skill_id: UUID, project_id: UUID | None = None) -> tables.Skill:
    """Raises NotFoundError also for a skill of another project than the one given."""
    skill = await session.get(tables.Skill, skill_id, populate_existing=True)
    if skill is None or project_id not in (None, skill.project_id):
        raise NotFoundError(f"no skill has the id {skill_id}; GET /v1/skills lists them")
    return skill


async def of_ids(session: AsyncSession, skill_ids: Collection[UUID]) -> list[tables.Skill]:
    """Those that exist, in no order."""
    return list(await session.scalars(select(tables.Skill).where(in_array(tables.Skill.id, skill_ids))))


async def versions(session: AsyncSession, project_id: UUID, name: str) -> Sequence[tables.Skill]:
    """Newest first."""
    return await of_names(session, project_id, [name])


async def of_names(session: AsyncSession, project_id: UUID, names: Collection[str]) -> Sequence[tables.Skill]:
    """All versions of these names, by name, newest first."""
    skill = tables.Skill
    query = select(skill).where(skill.project_id == project_id, in_array(skill.name, names))
    return await fresh(session, query.order_by(skill.name, skill.version.desc()))


async def made_by(session: AsyncSession, task_id: UUID) -> Sequence[tables.Skill]:
    """The skills that the task wrote, in the order they were stored."""
    query = select(tables.Skill).where(tables.Skill.task_id == task_id).order_by(tables.Skill.rev)
    return (await session.scalars(query)).all()


async def page(
    session: AsyncSession, only: SkillFilter, *, cursor: str | None = None, limit: int = 50
) -> Page[tables.Skill]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    return await read_page(session, _matching(select(tables.Skill), only), tables.Skill, cursor, limit)


async def ids(session: AsyncSession, only: SkillFilter) -> Sequence[UUID]:
    """All that match, newest first."""
    skill = tables.Skill
    newest = _matching(select(skill.id), only).order_by(skill.created_at.desc(), skill.id.desc())
    return (await session.scalars(newest)).all()


async def count(session: AsyncSession, only: SkillFilter) -> int:
    """Of all that match."""
    return await session.scalar(_matching(select(func.count(tables.Skill.id)), only)) or 0


async def alike(session: AsyncSession, skill: tables.Skill, limit: int = 30) -> Sequence[tables.Skill]:
    """Skills of other names that are offered and may do the same: they call the same operations, or were written
    in the same scenario. Those of which both holds first.
    """
    row = tables.Skill
    same_calls = row.apis == bindparam(None, sorted(skill.apis), row.apis.type)
    same_scenario = row.scenario == skill.scenario
    query = (
        select(row)
        .where(row.project_id == skill.project_id, row.name != skill.name, row.state.in_(LIVE_SKILLS), ~row.held)
        .where(or_(same_calls, same_scenario))
        .order_by(and_(same_calls, func.coalesce(same_scenario, False)).desc(), same_calls.desc(), row.name)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def scenarios(session: AsyncSession, project_id: UUID, limit: int = 200) -> Sequence[str]:
    """Those of its skills, those with most first."""
    skill = tables.Skill
    query = (
        select(skill.scenario)
        .where(skill.project_id == project_id, skill.scenario.is_not(None))
        .group_by(skill.scenario)
        .order_by(func.count().desc(), skill.scenario)
        .limit(limit)
    )
    return [name for name in await session.scalars(query) if name]


async def without_vectors(session: AsyncSession, embedder: str, limit: int = 100) -> Sequence[tables.Skill]:
    """Live skills of any project that this embedder was not asked for yet."""
    skill = tables.Skill
    other = or_(skill.embedder.is_(None), skill.embedder < embedder, skill.embedder > embedder)  # an index has it
    return (await session.scalars(select(skill).where(skill.state.in_(LIVE_SKILLS), other).limit(limit))).all()


async def set_vectors(
    session: AsyncSession, skill_id: UUID, embedder: str, query_vector: bytes | None, source_vector: bytes | None
) -> None:
    """Store the vectors of a skill, if it is still live; None for a text that the embedder refuses."""
    skill, rev = await locked(session, skill_id)
    if skill.state in LIVE_SKILLS:
        skill.embedder, skill.query_vector, skill.source_vector = embedder, query_vector, source_vector
        skill.rev = rev
        await session.flush()


def _matching(query: Select[S], only: SkillFilter) -> Select[S]:
    skill = tables.Skill
    for column, value in (
        (skill.project_id, only.project_id),
        (skill.state, only.state),
        (skill.principal, only.principal),
        (skill.name, only.name),
        (skill.scenario, only.scenario),
        (skill.held, only.held),
    ):
        if value is not None:
            query = query.where(column == value)
    if only.api is not None:
        terms = func.skill_api_terms(skill.apis, type_=postgresql.ARRAY(Text))  # the function of its index
        query = query.where(terms.contains([only.api]))
    if only.live:
        query = query.where(skill.state.in_(LIVE_SKILLS))
    text = func.concat_ws(" ", skill.name, skill.instruction, skill.scenario)
    for word in (only.words or "").split():
        query = query.where(text.icontains(word, autoescape=True))
    return query


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
