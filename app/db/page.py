"""Newest first, a page at a time, by a cursor that stays right while rows are added."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from app.db.models import Row
from app.errors import InvalidError

T = TypeVar("T", bound=Row)


class Page(msgspec.Struct, Generic[T], frozen=True):
    """`cursor` asks for the page after this one; None: this is the last."""

    items: list[T]
    cursor: str | None


class _Place(msgspec.Struct, frozen=True, array_like=True):
    created_at: datetime
    id: UUID


async def read_page(
    session: AsyncSession, query: Select[T], model: type[T], cursor: str | None, limit: int
) -> Page[T]:
    """Raises InvalidError if the cursor is not one of ours."""
    newest = query.order_by(model.created_at.desc(), model.id.desc()).limit(limit + 1)
    if cursor is not None:
        place = _decode(cursor)
        newest = newest.where(tuple_(model.created_at, model.id) < tuple_(place.created_at, place.id))
    rows = list(await session.scalars(newest))
    return Page(rows[:limit], _encode(rows[limit - 1]) if len(rows) > limit else None)


def _encode(row: Any) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(_Place(row.created_at, row.id))).decode()


def _decode(cursor: str) -> _Place:
    try:
        return msgspec.msgpack.decode(urlsafe_b64decode(cursor), type=_Place)
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidError("this `cursor` is none of ours: leave it out to begin with the newest") from error
