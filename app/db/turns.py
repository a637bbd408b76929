"""The turns of a running task: stored before their code runs, encrypted, and replayed when the task is resumed."""

from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, task_queue
from app.db.column_types import pack
from app.db.database import keys_of
from app.records import Turn


class RecordedTurn(msgspec.Struct, frozen=True):
    """A turn of an earlier attempt."""

    index: int
    turn: Turn
    ended: bool  # the observation is in it


async def begin(session: AsyncSession, task_id: UUID, owner: str, index: int, turn: Turn) -> None:
    """Record a turn; commit this before its code runs. Raises ConflictError if the task has another owner."""
    await task_queue.hold(session, task_id, owner)
    record = keys_of(session).encrypt_bytes(pack(turn))
    await session.execute(
        insert(models.TaskTurn)
        .values(task_id=task_id, index=index, record=record)
        .on_conflict_do_update(index_elements=["task_id", "index"], set_={"record": record, "ended": False})
    )


async def end(session: AsyncSession, task_id: UUID, owner: str, index: int, turn: Turn) -> None:
    """Record the turn's observation. Raises ConflictError if the task has another owner."""
    await task_queue.hold(session, task_id, owner)
    await session.execute(
        update(models.TaskTurn)
        .where(models.TaskTurn.task_id == task_id, models.TaskTurn.index == index)
        .values(record=keys_of(session).encrypt_bytes(pack(turn)), ended=True)
    )


async def of_task(session: AsyncSession, task_id: UUID) -> list[RecordedTurn]:
    """The turns of a task, in order."""
    rows = await session.scalars(
        select(models.TaskTurn)
        .where(models.TaskTurn.task_id == task_id)
        .order_by(models.TaskTurn.index)
        .execution_options(populate_existing=True)
    )
    keys = keys_of(session)
    return [
        RecordedTurn(row.index, msgspec.msgpack.decode(keys.opened(row.record), type=Turn), row.ended)
        for row in rows
    ]
