"""The event stream of each task, in the database. Numbered from 1 without a gap, in the order of the commits."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.records import Json

CHANNEL = "sage_events"  # NOTIFY: a task has news; its id is the payload


class News(NamedTuple):
    """One event to be told."""

    kind: str
    data: dict[str, Json]


async def append(session: AsyncSession, task_id: UUID, kind: str, data: dict[str, Json]) -> int:
    """Its number. Others that append to the same task wait until this transaction ends, so commit soon.

    A reader that asks for what comes after a number can therefore never be overtaken by a smaller one.
    """
    return await append_all(session, task_id, [News(kind, data)])


async def append_all(session: AsyncSession, task_id: UUID, news: Sequence[News]) -> int:
    """As `append`, several at once and in order. The number of the last."""
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(str(task_id), 0))))
    newest = select(func.coalesce(func.max(models.TaskEvent.seq), 0)).where(models.TaskEvent.task_id == task_id)
    last: int = (await session.scalars(newest)).one()
    rows = [
        {"task_id": task_id, "seq": seq, "kind": each.kind, "data": each.data}
        for seq, each in enumerate(news, start=last + 1)
    ]
    told = func.pg_notify(CHANNEL, str(task_id))
    await session.execute(insert(models.TaskEvent).values(rows).returning(told))
    return last + len(rows)


async def after(
    session: AsyncSession, task_id: UUID, seq: int = 0, limit: int = 500
) -> Sequence[models.TaskEvent]:
    """In order, those that follow `seq`."""
    query = (
        select(models.TaskEvent)
        .where(models.TaskEvent.task_id == task_id, models.TaskEvent.seq > seq)
        .order_by(models.TaskEvent.seq)
        .limit(limit)
    )
    return (await session.scalars(query)).all()
