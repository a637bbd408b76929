"""The event stream of each task, in the database. Numbered from 1 without a gap, in the order of the commits."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.records import Json

CHANNEL = "sage_events"  # NOTIFY: a task has news; its id is the payload


async def append(session: AsyncSession, task_id: UUID, kind: str, data: dict[str, Json]) -> int:
    """Its number. Others that append to the same task wait until this transaction ends, so commit soon.

    A reader that asks for what comes after a number can therefore never be overtaken by a smaller one.
    """
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(str(task_id), 0))))
    last = select(func.coalesce(func.max(models.TaskEvent.seq), 0)).where(models.TaskEvent.task_id == task_id)
    rows = await session.scalars(
        insert(models.TaskEvent)
        .values(task_id=task_id, seq=last.scalar_subquery() + 1, kind=kind, data=data)
        .returning(models.TaskEvent.seq)
    )
    seq: int = rows.one()
    await session.execute(select(func.pg_notify(CHANNEL, str(task_id))))
    return seq


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
