"""The events of each task, numbered from 1 without a gap in the order of the commits."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import BigInteger, ColumnElement, Text, Uuid, bindparam, case, cast, func, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.column_types import to_json
from app.db.database import execute
from app.records import Json

_APPEND = text("SELECT append_task_events(:task, CAST(:new AS jsonb))")  # waits, numbers, inserts and notifies


_DATA = select(tables.TaskEvent.seq, tables.TaskEvent.data).where(
    tables.TaskEvent.task_id == bindparam("task", type_=Uuid)
)


class NewEvent(NamedTuple):
    """An event to append."""

    kind: str
    data: dict[str, Json]


async def append(session: AsyncSession, task_id: UUID, kind: str, data: dict[str, Json]) -> int:
    """Append an event and return its number. Other writers to the task wait for this transaction: commit soon.

    So events become visible in the order of their numbers, and a reader that has seen one misses no smaller one.
    """
    return await append_all(session, task_id, [NewEvent(kind, data)])


async def append_all(session: AsyncSession, task_id: UUID, new: Sequence[NewEvent]) -> int:
    """Append several events in order. Returns the number of the last."""
    values = {"task": task_id, "new": parameter(new)}
    return int((await execute(session, _APPEND, values)).scalar_one())


def appended(task_id: ColumnElement[UUID]) -> ColumnElement[int | None]:
    """A column that appends the events of the parameter `events`, which `parameter` prepares, if there are any."""
    new = cast(bindparam("events", type_=Text), JSONB)
    return case((func.jsonb_array_length(new) > 0, func.append_task_events(task_id, new)))


def parameter(new: Iterable[NewEvent]) -> str:
    """Events as a parameter of statements that append them."""
    return to_json([[each.kind, each.data] for each in new])


async def rewrite(session: AsyncSession, task_id: UUID, change: Callable[[Json], Json]) -> None:
    """Replace the data of each event by what `change` makes of it."""
    event = tables.TaskEvent
    for row in (await execute(session, _DATA, {"task": task_id})).all():
        if (changed := change(row.data)) != row.data:
            await session.execute(
                update(event).where(event.task_id == task_id, event.seq == row.seq).values(data=changed)
            )


async def has(session: AsyncSession, task_id: UUID, kind: str) -> bool:
    """Whether the task has an event of this kind."""
    found = select(tables.TaskEvent.seq).where(tables.TaskEvent.task_id == task_id, tables.TaskEvent.kind == kind)
    return await session.scalar(found.limit(1)) is not None


async def of_kind(session: AsyncSession, task_id: UUID, kind: str) -> Sequence[dict[str, Json]]:
    """The data of the task's events of this kind, in order."""
    event = tables.TaskEvent
    query = select(event.data).where(event.task_id == task_id, event.kind == kind).order_by(event.seq)
    return (await session.scalars(query)).all()


async def after(
    session: AsyncSession, task_id: UUID, seq: int = 0, limit: int = 500
) -> Sequence[tables.TaskEvent]:
    """Events after number `seq`, in order."""
    query = (
        select(tables.TaskEvent)
        .where(tables.TaskEvent.task_id == task_id, tables.TaskEvent.seq > seq)
        .order_by(tables.TaskEvent.seq)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def latest(session: AsyncSession, task_id: UUID) -> int:
    """The number of the last event; 0 without one."""
    query = select(func.max(tables.TaskEvent.seq)).where(tables.TaskEvent.task_id == task_id)
    return await session.scalar(query) or 0


async def used(session: AsyncSession, task_id: UUID) -> dict[str, int]:
    """The turns, generated tokens and calls of a task, by its events."""
    event = tables.TaskEvent
    is_turn, is_call = event.kind == "turn", event.kind == "call"
    tokens = cast(event.data["tokens"].astext, BigInteger)
    query = select(
        func.count().filter(is_turn).label("turns"),
        func.coalesce(func.sum(tokens).filter(is_turn), 0).label("generated_tokens"),
        func.count().filter(is_call).label("calls"),
    ).where(event.task_id == task_id)
    row = (await session.execute(query)).one()
    return {name: int(value) for name, value in row._mapping.items()}
