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


async def held(session: AsyncSession) -> set[str]:
    """What model servers may be asked for: models of active and candidate releases, and of unfinished tasks."""
    release, unfinished = models.Release, [TaskState.ACCEPTED, TaskState.RUNNING]
    pinned = select(models.Task.release_id).where(models.Task.state.in_(unfinished))
    serving = release.state.in_([ReleaseState.ACTIVE, ReleaseState.CANDIDATE])
    return set(await session.scalars(select(release.model).where(serving | release.id.in_(pinned))))
