"""Adapters in the database. Their weights lie in the adapter directory, under the same name."""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.db.models import ReleaseState, TaskState
from app.errors import NotFoundError


async def put(
    session: AsyncSession, digest: str, *, base: str, rank: int, run_id: UUID | None = None
) -> models.Adapter:
    """Once its files lie there. The same content twice is the same adapter: the first row stays."""
    await session.execute(
        insert(models.Adapter)
        .values(hash=digest, base=base, rank=rank, run_id=run_id)
        .on_conflict_do_nothing(index_elements=["hash"])
    )
    return await get(session, digest)


async def get(session: AsyncSession, digest: str) -> models.Adapter:
    row = await session.get(models.Adapter, digest)
    if row is None:
        raise NotFoundError(f"no adapter has the hash {digest}")
    return row


async def active(session: AsyncSession) -> set[str]:
    """The models of all active releases."""
    query = select(models.Release.model).where(models.Release.state == ReleaseState.ACTIVE)
    return set(await session.scalars(query))


async def needed(session: AsyncSession) -> set[str]:
    """The models that unfinished tasks are pinned to, and those of candidates, which may be under examination."""
    release, unfinished = models.Release, [TaskState.ACCEPTED, TaskState.RUNNING]
    pinned = select(models.Task.release_id).where(models.Task.state.in_(unfinished))
    wanted = release.id.in_(pinned) | (release.state == ReleaseState.CANDIDATE)
    return set(await session.scalars(select(release.model).where(wanted)))
