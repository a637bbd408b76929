"""The OpenAPI documents of projects, in the database."""

from collections.abc import Sequence
from uuid import UUID

from msgspec import UNSET, UnsetType
from sqlalchemy import delete as sql_delete
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.errors import NotFoundError
from app.records import Json


async def put(  # noqa: PLR0913 - the columns of a row
    session: AsyncSession,
    project_id: UUID,
    name: str,
    *,
    source: str,
    document: dict[str, Json],
    digest: str,
    server: str | None = None,
    secret: str | UnsetType | None = UNSET,
) -> models.Api:
    """Insert an API, or replace the one of that name. Keeps the stored secret if `secret` is UNSET."""
    given = {"source": source, "document": document, "digest": digest, "server": server}
    if secret is not UNSET:
        given["secret"] = secret
    row = await session.scalar(
        insert(models.Api)
        .values(project_id=project_id, name=name, **given)
        .on_conflict_do_update(index_elements=["project_id", "name"], set_=given)
        .returning(models.Api)
        .execution_options(populate_existing=True)
    )
    assert row is not None  # an upsert always returns its row
    return row


async def of_project(session: AsyncSession, project_id: UUID) -> Sequence[models.Api]:
    """Ordered by name."""
    query = select(models.Api).where(models.Api.project_id == project_id).order_by(models.Api.name)
    return (await session.scalars(query)).all()


async def get(session: AsyncSession, project_id: UUID, name: str) -> models.Api:
    row = await session.scalar(
        select(models.Api).where(models.Api.project_id == project_id, models.Api.name == name)
    )
    if row is None:
        raise _unknown(name)
    return row


async def delete(session: AsyncSession, project_id: UUID, name: str) -> None:
    deleted = await session.scalar(
        sql_delete(models.Api)
        .where(models.Api.project_id == project_id, models.Api.name == name)
        .returning(models.Api.id)
    )
    if deleted is None:
        raise _unknown(name)


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"this project has no API named {name!r}; GET /v1/apis lists them")
