"""The secrets of projects, in the database: encrypted values under names."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.db import tables
from app.db.database import keys_of

_secret = tables.Secret


async def put(session: AsyncSession, project_id: UUID, name: str, value: str) -> tables.Secret:
    """Store a secret, or replace the one of that name."""
    given = {"value": keys_of(session).encrypt(value)}
    row = await session.scalar(
        insert(_secret)
        .values(project_id=project_id, name=name, **given)
        .on_conflict_do_update(index_elements=["project_id", "name"], set_=given)
        .returning(_secret)
        .execution_options(populate_existing=True)
    )
    assert row is not None  # an upsert always returns its row
    return row


async def of_project(session: AsyncSession, project_id: UUID) -> Sequence[tables.Secret]:
    """Ordered by name."""
    return (
        await session.scalars(select(_secret).where(_secret.project_id == project_id).order_by(_secret.name))
    ).all()


async def use(session: AsyncSession, project_id: UUID, name: str) -> str:
    """The value, and record its use. Raises NotFoundError, or SettingError if it cannot be decrypted."""
    used = update(_secret).where(_secret.project_id == project_id, _secret.name == name)
    value = await session.scalar(used.values(used_at=func.clock_timestamp()).returning(_secret.value))
    if value is None:
        raise _unknown(name)
    return keys_of(session).decrypt(value)


async def delete(session: AsyncSession, project_id: UUID, name: str) -> None:
    which = (_secret.project_id == project_id, _secret.name == name)
    if await session.scalar(sql_delete(_secret).where(*which).returning(_secret.id)) is None:
        raise _unknown(name)


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"this project has no secret named {name!r}; PUT /v1/secrets/{name} stores it")
