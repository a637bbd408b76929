"""What releases consist of, in the database: adapters, sets of skills, sets of API documents, prompts.

The sets are each stored under their hash, and an adapter under the hash of its content: its weights are in the
adapter directory, under the same name.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, Uuid, and_, bindparam, exists, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from app.apis.credentials import store as credentials
from app.base.errors import NotFoundError
from app.base.run_settings import RunKind
from app.base.values import Json, Probe
from app.db import lease, tables
from app.db.database import Handle, execute
from app.db.queries import in_array
from app.db.tables import OPEN_RUNS, SERVING_STATES, ReleaseState, RunState, SkillState, TaskState
from app.releases.store import is_local
from app.skills import moves

_project, _release, _tools, _api = tables.Project, tables.Release, tables.ToolSet, tables.Api


async def put(
    session: AsyncSession,
    digest: str,
    *,
    base: str,
    rank: int,
    project_id: UUID | None,
    run_id: UUID | None = None,
    probe: Probe | None = None,
) -> tables.Adapter:
    """Add an adapter whose files are in place, of one project or of all (None). The same content again is the same
    adapter: the first row stays.
    """
    await session.execute(
        insert(tables.Adapter)
        .values(
            hash=digest,
            base=base,
            rank=rank,
            project_id=project_id,
            run_id=run_id,
            probe=msgspec.to_builtins(probe),
        )
        .on_conflict_do_nothing(index_elements=["hash"])
    )
    return await get(session, digest)


async def probe(session: AsyncSession, digest: str) -> Probe | None:
    """The trainer's logprobs of fixed tokens, or None for an adapter that was imported."""
    row = await session.get(tables.Adapter, digest)
    return None if row is None or row.probe is None else msgspec.convert(row.probe, Probe)


async def get(session: AsyncSession, digest: str) -> tables.Adapter:
    row = await session.get(tables.Adapter, digest)
    if row is None:
        raise NotFoundError(f"no adapter has the hash {digest}")
    return row


async def active(session: AsyncSession) -> set[str]:
    """Models of all active releases, but for hosted ones."""
    return await _models(session, [ReleaseState.ACTIVE], is_local(_release.model))


async def serving(session: AsyncSession) -> set[str]:
    """Models that new tasks may be pinned to: of active releases and of canaries, but for hosted ones."""
    return await _models(session, SERVING_STATES, is_local(_release.model))


async def hosted_serving(session: AsyncSession) -> set[str]:
    """Hosted models that new tasks may be pinned to."""
    return await _models(session, SERVING_STATES, ~is_local(_release.model))


async def _models(session: AsyncSession, states: Collection[ReleaseState], which: ColumnElement[bool]) -> set[str]:
    return set(await session.scalars(select(_release.model).where(_release.state.in_(states), which)))


async def projects_of(session: AsyncSession, model: str) -> Sequence[str]:
    """The names of projects whose active release has the model."""
    release, project = tables.Release, tables.Project
    query = select(project.name).join(release, release.project_id == project.id)
    query = query.where(release.model == model, release.state == ReleaseState.ACTIVE)
    return (await session.scalars(query.order_by(project.name))).all()


async def releases_with(session: AsyncSession, model: str) -> Sequence[tables.Release]:
    """Releases of the model that new tasks may be pinned to."""
    query = select(_release).where(_release.model == model, _release.state.in_(SERVING_STATES))
    return (await session.scalars(query)).all()


async def known(session: AsyncSession, names: Collection[str]) -> set[str]:
    """The given names that are in the database. Training runs load others for themselves."""
    rows, release = tables.Adapter, tables.Release
    kept = select(rows.hash).where(rows.hash.in_(names))
    return set(await session.scalars(kept.union(select(release.model).where(release.model.in_(names)))))


async def needed(session: AsyncSession) -> set[str]:
    """Models that must stay loaded although no active release has them, but for hosted ones.

    They belong to unfinished tasks and shadows, canaries, releases that passed, candidates whose run has yet to
    evaluate them, and releases that are being activated.
    """
    release, run, unfinished = tables.Release, tables.TrainingRun, [TaskState.ACCEPTED, TaskState.RUNNING]
    pinned = select(tables.Task.release_id).where(tables.Task.state.in_(unfinished))
    shadowed = select(tables.Shadow.release_id).where(tables.Shadow.finished_at.is_(None))
    training = select(run.id).where(run.state.in_(OPEN_RUNS))
    unexamined = and_(release.state == ReleaseState.CANDIDATE, release.evidence.is_(None))
    wanted = or_(
        release.id.in_(pinned),
        release.id.in_(shadowed),
        release.state.in_([ReleaseState.PASSED, ReleaseState.CANARY]),
        and_(unexamined, release.training_run_id.in_(training)),
        lease.is_being_activated(),
    )
    return set(await session.scalars(select(release.model).where(wanted, is_local(release.model))))


async def any_trains(session: AsyncSession) -> bool:
    """Whether a run goes on, in any project: it may have loaded adapters that no row knows."""
    return bool(await session.scalar(select(exists().where(tables.TrainingRun.state == RunState.RUNNING))))


def learns_from_tasks(project_id: UUID | InstrumentedAttribute[UUID]) -> ColumnElement[bool]:
    """SQL condition: runs of kind `logged` are scheduled for the project."""
    schedule = tables.Schedule
    kind = schedule.settings["kind"].astext
    return exists().where(schedule.project_id == project_id, schedule.enabled, kind == RunKind.LOGGED)


_SERVING = (
    select(
        _project.name.label("project"),
        _project.settings,
        learns_from_tasks(_project.id).label("learns"),
        _release.state,
        _release.model,
        _release.prompt,
        _tools.documents[_api.name].astext.label("document"),
        _tools.presentations[_api.name].label("presentation"),
        _api.id,
        _api.name,
        _api.source,
        _api.server,
        _api.token,
        credentials.of_schemes(_api.id).label("has_credentials"),
        _api.bind,
        _api.secrets_for,
        _api.token_origins,
    )
    .join(_release, _release.project_id == _project.id)
    .join(_tools, _tools.hash == _release.tools)
    .outerjoin(_api, _api.project_id == _project.id)
    .where(_project.id == bindparam("project", type_=Uuid), _release.id == bindparam("release", type_=Uuid))
    .order_by(_api.name)
)


class Tool(msgspec.Struct, frozen=True):
    """The document of an API in a release, and how it is presented."""

    digest: str
    presentation: dict[str, Json] = {}


class SkillName(msgspec.Struct, frozen=True):
    """A skill, as listed in the changes between releases."""

    id: UUID
    name: str
    version: int

    @classmethod
    def of(cls, skill: tables.Skill) -> "SkillName":
        return cls(skill.id, skill.name, skill.version)


async def store_skills(session: AsyncSession, project_id: UUID) -> str:
    """Store the set of skills that tasks may be offered. Returns its hash."""
    offered = await moves.offered_skills(session, project_id)
    skills = sorted(
        f"{key} {state}" if state is not SkillState.ACTIVE else str(key) for key, state in offered.items()
    )
    digest = _hash(skills)
    await session.execute(insert(tables.SkillSet).values(hash=digest, skills=skills).on_conflict_do_nothing())
    return digest


async def skill_states(session: AsyncSession, digest: str) -> dict[UUID, SkillState]:
    """The skills of a set, and the states they had."""
    entries = (entry.split(" ") for entry in (await session.get_one(tables.SkillSet, digest)).skills)
    return {UUID(key): SkillState(state[0]) if state else SkillState.ACTIVE for key, *state in entries}


async def skill_names(session: AsyncSession, skill_ids: Collection[UUID]) -> list[SkillName]:
    """Ordered by name and version."""
    skill = tables.Skill
    query = select(skill.id, skill.name, skill.version).where(in_array(skill.id, skill_ids))
    query = query.order_by(skill.name, skill.version, skill.id)
    return [SkillName(*row) for row in await session.execute(query)]


async def manifests_serving(handle: Handle, project_id: UUID, release_id: UUID) -> Sequence[Row[Any]]:
    """A row for each API of the project, by name, with its `document` in the release and what tasks need of the
    release and the project; at least one, with nulls, if the release has recorded its tools, otherwise none.
    """
    return (await execute(handle, _SERVING, {"project": project_id, "release": release_id})).all()


async def api_tools(session: AsyncSession, project_id: UUID) -> dict[str, Tool]:
    """The APIs of the project as they are now, by name."""
    api = tables.Api
    rows = await session.execute(
        select(api.name, api.digest, api.presentation).where(api.project_id == project_id)
    )
    return {row.name: Tool(row.digest, row.presentation) for row in rows}


async def store_tools(session: AsyncSession, project_id: UUID, tools: Mapping[str, Tool]) -> str:
    """Store a set of API documents, given by name. Returns its hash.

    Documents of registered APIs are copied, so that they outlive their APIs; others were copied before.
    """
    api, document = tables.Api, tables.ToolDocument
    digests = {name: each.digest for name, each in tools.items()}
    presentations = {name: each.presentation for name, each in tools.items() if each.presentation}
    wanted = select(api.digest, api.document).where(
        api.project_id == project_id, in_array(api.digest, digests.values())
    )
    await session.execute(insert(document).from_select(["digest", "document"], wanted).on_conflict_do_nothing())
    parts = [sorted(digests.items()), sorted(presentations.items())] if presentations else sorted(digests.items())
    digest = _hash(parts)
    row = insert(tables.ToolSet).values(hash=digest, documents=digests, presentations=presentations)
    await session.execute(row.on_conflict_do_nothing())
    return digest


async def tool_set(session: AsyncSession, digest: str) -> dict[str, Tool]:
    """The API documents of a set, by name."""
    row = await session.get_one(tables.ToolSet, digest)
    return {name: Tool(each, row.presentations.get(name, {})) for name, each in row.documents.items()}


async def store_prompt(session: AsyncSession, digest: str, text: str) -> None:
    row = insert(tables.PromptText).values(hash=digest, text=text)
    await session.execute(row.on_conflict_do_nothing())


async def prompt_text(session: AsyncSession, digest: str | None) -> str | None:
    """None for one of a version of this server that kept no texts."""
    return await session.scalar(select(tables.PromptText.text).where(tables.PromptText.hash == digest))


async def is_unused(session: AsyncSession, release: tables.Release) -> bool:
    """Whether no task has begun with the release. If so, none will before this transaction ends."""
    row, task = tables.Release, tables.Task
    begun = select(exists().where(task.project_id == release.project_id, task.release_id == release.id))
    if await session.scalar(begun):
        return False
    await session.execute(select(row.id).where(row.id == release.id).with_for_update())
    return not await session.scalar(begun)


def _hash(parts: Sequence[object]) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()
