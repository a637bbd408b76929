"""The journal of API calls: a row is committed before a call goes out, and completed with its result.

Arguments and results are encrypted: they hold passwords.
"""

import json
from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, task_queue
from app.db.column_types import pack, to_json
from app.db.database import keys_of
from app.errors import ConflictError
from app.records import Call, Json
from app.security.encryption import KeyRing


class JournalCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier attempt. Without a result it is unknown whether it took effect."""

    seq: int
    api: str
    arguments: dict[str, Json]
    repeatable: bool  # safe to send again
    call: Call | None


async def begin(
    session: AsyncSession, task_id: UUID, owner: str, call: Call, *, repeatable: bool, seconds: float = 0
) -> None:
    """Record a call; commit this before it goes out. A repeatable call without a result may begin again.

    Nobody else can claim the task for `seconds` from now. Raises ConflictError if the call went out before, or the
    task is no longer the owner's.
    """
    await task_queue.hold_for(session, task_id, owner, seconds)
    row = {**_request(session, call), "repeatable": repeatable, "record": None}
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


async def end(session: AsyncSession, task_id: UUID, call: Call) -> bool:
    """Record the result, also if the task has another owner by now: the call has taken effect.

    False if the task has ended, which deletes its journal.
    """
    ended = (
        update(models.TaskCall)
        .where(models.TaskCall.task_id == task_id, models.TaskCall.seq == call.seq)
        .values(record=keys_of(session).encrypt_bytes(pack(call)))
    )
    return await session.scalar(ended.returning(models.TaskCall.seq)) is not None


async def record(session: AsyncSession, task_id: UUID, made: Sequence[Call]) -> None:
    """Record repeatable calls with their results; they need no record before they go out.

    For transactions that also check the task's owner: another runner repeats the calls.
    """
    new = insert(models.TaskCall).values(
        [
            {
                "task_id": task_id,
                "seq": call.seq,
                "repeatable": True,
                "record": keys_of(session).encrypt_bytes(pack(call)),
                **_request(session, call),
            }
            for call in made
        ]
    )
    names = ("api", "arguments", "sealed_arguments", "repeatable", "record")
    known = {name: new.excluded[name] for name in names}
    await session.execute(new.on_conflict_do_update(index_elements=["task_id", "seq"], set_=known))


async def of_task(session: AsyncSession, task_id: UUID) -> list[JournalCall]:
    """The calls of a task, in order of `seq`."""
    rows = await session.scalars(
        select(models.TaskCall)
        .where(models.TaskCall.task_id == task_id)
        .order_by(models.TaskCall.seq)
        .execution_options(populate_existing=True)
    )
    keys = keys_of(session)
    return [_journal_call(row, keys) for row in rows]


def _request(session: AsyncSession, call: Call) -> dict[str, Json]:
    """The columns of what was called. Arguments may be passwords."""
    sealed = keys_of(session).encrypt_bytes(to_json(call.arguments).encode())
    return {"api": call.api, "arguments": {}, "sealed_arguments": sealed}


def _journal_call(row: models.TaskCall, keys: KeyRing) -> JournalCall:
    call = None if row.record is None else msgspec.msgpack.decode(keys.opened(row.record), type=Call)
    arguments = row.arguments
    if row.sealed_arguments is not None:
        arguments = json.loads(keys.opened(row.sealed_arguments))
    return JournalCall(seq=row.seq, api=row.api, arguments=arguments, repeatable=row.repeatable, call=call)
