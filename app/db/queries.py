"""Parts of queries: pages by a cursor that stays valid while rows are added, `IN` for any number of keys, and
times by the database's clock, so that the clocks of processes need not agree.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import ARRAY, ColumnElement, Select, any_, bindparam, func, literal, select, tuple_
from sqlalchemy.dialects.postgresql import INTERVAL
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from app.base.errors import InvalidError
from app.db.tables import Entity

T = TypeVar("T", bound=Entity)
K = TypeVar("K")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """`cursor` is that of the next page; None on the last one."""

    items: list[T]
    cursor: str | None


class _Position(msgspec.Struct, frozen=True, array_like=True):
    created_at: datetime
    id: UUID


async def read_page(
    session: AsyncSession,
    query: Select[T],
    model: type[T],
    cursor: str | None,
    limit: int,
    *,
    by: tuple[Any, Any] | None = None,
) -> Page[T]:
    """Raises InvalidError for an invalid cursor. `by` are columns of another table that repeat time and id."""
    created_at, key = by or (model.created_at, model.id)
    newest = query.order_by(created_at.desc(), key.desc()).limit(limit + 1)
    if cursor is not None:
        position = _decode(cursor)
        newest = newest.where(tuple_(created_at, key) < tuple_(position.created_at, position.id))
    rows = list(await session.scalars(newest))
    return Page(rows[:limit], _encode(rows[limit - 1]) if len(rows) > limit else None)


def _encode(row: Any) -> str:
    return urlsafe_b64encode(msgspec.msgpack.encode(_Position(row.created_at, row.id))).decode()


def _decode(cursor: str) -> _Position:
    try:
        return msgspec.msgpack.decode(urlsafe_b64decode(cursor), type=_Position)
    except (ValueError, msgspec.DecodeError) as error:
        raise InvalidError("`cursor` is invalid: omit it to begin with the newest") from error


def in_array(
    column: InstrumentedAttribute[K] | InstrumentedAttribute[K | None], keys: Iterable[K]
) -> ColumnElement[bool]:
    """`column IN keys` with one array parameter: a query takes no more than 65,535 parameters."""
    return column == any_(bindparam(None, list(keys), ARRAY(column.type)))


def from_now(seconds: float) -> ColumnElement[object]:
    return func.clock_timestamp() + literal(timedelta(seconds=seconds), INTERVAL)


def ago(seconds: float) -> ColumnElement[object]:
    """As `from_now`, in the past, for a condition: what is computed once is looked up in an index, and the clock,
    which goes on, is not.
    """
    return select(from_now(-seconds)).scalar_subquery()


async def now(session: AsyncSession) -> datetime:
    time: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return time
