"""The journal of API calls, in the database: a row before a call goes out, completed when its result is in."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, task_queue
from app.db.column_types import pack
from app.errors import ConflictError
from app.records import Call, Json


class JournalCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier attempt. Without a result nobody knows whether it took effect."""

    seq: int
    api: str
    arguments: dict[str, Json]
    repeatable: bool  # safe to send again
    call: Call | None


async def begin(session: AsyncSession, task_id: UUID, owner: str, call: Call, *, repeatable: bool) -> None:
    """Commit this before the call goes out. A repeatable one without a result may begin again.

    ConflictError: the call must not be made, for it went out before or the task is no longer the owner's.
    """
    await task_queue.hold(session, task_id, owner)
    row = {"api": call.api, "arguments": call.arguments, "repeatable": repeatable, "record": None}
    lost = models.TaskCall.record.is_(None)
    begun = await session.scalar(
        insert(models.TaskCall)
        .values(task_id=task_id, seq=call.seq, **row)
        .on_conflict_do_update(
            index_elements=["task_id", "seq"], set_=row, where=lost & models.TaskCall.repeatable & repeatable
        )
        .returning(models.TaskCall.seq)
    )
    if begun is None:
        raise ConflictError(f"call {call.seq} of task {task_id} ({call.api}) went out before")


async def end(session: AsyncSession, task_id: UUID, call: Call) -> None:
    """The result, whoever owns the task by now: it tells what has happened in the world."""
    await session.execute(
        update(models.TaskCall)
        .where(models.TaskCall.task_id == task_id, models.TaskCall.seq == call.seq)
        .values(record=pack(call))
    )


async def record(session: AsyncSession, task_id: UUID, owner: str, made: Sequence[Call]) -> None:
    """Repeatable calls, after they have come back: nothing had to be written before they went out.

    ConflictError: the task is no longer the owner's, and another runner makes them again.
    """
    await task_queue.hold(session, task_id, owner)
    new = insert(models.TaskCall).values(
        [
            {
                "task_id": task_id,
                "seq": call.seq,
                "api": call.api,
                "arguments": call.arguments,
                "repeatable": True,
                "record": pack(call),
            }
            for call in made
        ]
    )
    known = {name: new.excluded[name] for name in ("api", "arguments", "repeatable", "record")}
    await session.execute(new.on_conflict_do_update(index_elements=["task_id", "seq"], set_=known))


async def of_task(session: AsyncSession, task_id: UUID) -> list[JournalCall]:
    """In order."""
    rows = await session.scalars(
        select(models.TaskCall)
        .where(models.TaskCall.task_id == task_id)
        .order_by(models.TaskCall.seq)
        .execution_options(populate_existing=True)
    )
    return [_journal_call(row) for row in rows]


def _journal_call(row: models.TaskCall) -> JournalCall:
    call = None if row.record is None else msgspec.msgpack.decode(row.record, type=Call)
    return JournalCall(seq=row.seq, api=row.api, arguments=row.arguments, repeatable=row.repeatable, call=call)
