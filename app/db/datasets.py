"""Datasets in the database."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.db import tables
from app.db.queries import Page, read_page

_dataset = tables.Dataset


async def add(session: AsyncSession, new: tables.Dataset) -> tables.Dataset:
    """Store the row. If the project has a dataset with the same content, return that instead."""
    values = {
        name: getattr(new, name) for name in ("id", "project_id", "name", "digest", "bytes", "conversations")
    }
    await session.execute(insert(_dataset).values(**values).on_conflict_do_nothing())
    same = select(_dataset).where(_dataset.project_id == new.project_id, _dataset.digest == new.digest)
    return (await session.scalars(same)).one()


async def get(session: AsyncSession, dataset_id: UUID, project_id: UUID | None = None) -> tables.Dataset:
    """Raises NotFoundError also for a dataset of another project than the one given."""
    found = await session.get(_dataset, dataset_id)
    if found is None or project_id not in (None, found.project_id):
        raise NotFoundError(f"no dataset has the id {dataset_id}; GET /v1/datasets lists them")
    return found


async def page(
    session: AsyncSession, project_id: UUID | None, *, cursor: str | None, limit: int
) -> Page[tables.Dataset]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_dataset)
    if project_id is not None:
        query = query.where(_dataset.project_id == project_id)
    return await read_page(session, query, _dataset, cursor, limit)


async def stored_bytes(session: AsyncSession, project_id: UUID) -> int:
    """The sum over the project's datasets. Other transactions that ask wait until this one ends."""
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"datasets {project_id}", 0))))
    query = select(func.coalesce(func.sum(_dataset.bytes), 0)).where(_dataset.project_id == project_id)
    return int((await session.scalars(query)).one())


async def ids_of(session: AsyncSession, project_id: UUID) -> Sequence[UUID]:
    return (await session.scalars(select(_dataset.id).where(_dataset.project_id == project_id))).all()


async def delete(session: AsyncSession, dataset_id: UUID) -> None:
    await session.execute(sql_delete(_dataset).where(_dataset.id == dataset_id))
