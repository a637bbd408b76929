"""Adapters in the database. Their weights are in the adapter directory, under the same name."""

from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import and_, exists, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.base.values import Probe
from app.db import lease, tables
from app.db.releases import is_local
from app.db.tables import ReleaseState, RunState, TaskState


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
    release = tables.Release
    query = select(release.model).where(release.state == ReleaseState.ACTIVE, is_local(release.model))
    return set(await session.scalars(query))


async def serving(session: AsyncSession) -> set[str]:
    """Models that new tasks may be pinned to: of active releases and of canaries, but for hosted ones."""
    release, states = tables.Release, [ReleaseState.ACTIVE, ReleaseState.CANARY]
    query = select(release.model).where(release.state.in_(states), is_local(release.model))
    return set(await session.scalars(query))


async def hosted_serving(session: AsyncSession) -> set[str]:
    """Hosted models that new tasks may be pinned to."""
    release, states = tables.Release, [ReleaseState.ACTIVE, ReleaseState.CANARY]
    query = select(release.model).where(release.state.in_(states), ~is_local(release.model))
    return set(await session.scalars(query))


async def projects_of(session: AsyncSession, model: str) -> Sequence[str]:
    """The names of projects whose active release has the model."""
    release, project = tables.Release, tables.Project
    query = select(project.name).join(release, release.project_id == project.id)
    query = query.where(release.model == model, release.state == ReleaseState.ACTIVE)
    return (await session.scalars(query.order_by(project.name))).all()


async def releases_with(session: AsyncSession, model: str) -> Sequence[tables.Release]:
    """Releases of the model that new tasks may be pinned to."""
    states = [ReleaseState.ACTIVE, ReleaseState.CANARY]
    query = select(tables.Release).where(tables.Release.model == model, tables.Release.state.in_(states))
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
    training = select(run.id).where(run.state.in_([RunState.QUEUED, RunState.RUNNING]))
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
