"""The turns of a running task: stored before their code runs, encrypted, and replayed when the task is resumed."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import Integer, LargeBinary, Uuid, bindparam, delete, exists, false, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Call, Turn
from app.db import lease, results, tables
from app.db.database import Handle, execute, keys_of, pack
from app.tasks import calls

_held = lease.held()
_index, _record = bindparam("turn_index", type_=Integer), bindparam("turn_record", type_=LargeBinary)
_turn = tables.TaskTurn
_new = insert(_turn).from_select(
    ["task_id", "index", "record", "ended"], select(_held.c.id, _index, _record, false())
)
_begun = _new.on_conflict_do_update(
    index_elements=["task_id", "index"], set_={"record": _new.excluded.record, "ended": False}
)
_BEGIN = select(_held.c.id, results.appended(_held.c.id)).add_cte(_begun.cte("begun"))
_ended = (
    update(_turn)
    .where(_turn.task_id == _held.c.id, _turn.index == _index)
    .values(record=_record, ended=true())
    .cte("ended")
)
_END = select(_held.c.id, results.appended(_held.c.id)).add_cte(calls.recorded(_held), _ended)


_RESUMES = select(
    or_(
        *(
            exists().where(row.task_id == bindparam("task", type_=Uuid))
            for row in (_turn, tables.TaskCall, tables.Approval)
        )
    )
)


class RecordedTurn(msgspec.Struct, frozen=True):
    """A turn of an earlier attempt."""

    index: int
    turn: Turn
    ended: bool  # the observation is in it


async def begin(
    handle: Handle, task_id: UUID, owner: str, index: int, turn: Turn, new: Sequence[results.NewEvent] = ()
) -> None:
    """Record a turn, with new events; commit this before its code runs.

    Raises ConflictError if the task has another owner.
    """
    record = keys_of(handle).encrypt_bytes(pack(turn))
    values = {"task": task_id, "claim": owner, "turn_index": index, "turn_record": record}
    values["events"] = results.parameter(new)
    if (await execute(handle, _BEGIN, values)).first() is None:
        raise lease.lost("task", task_id, owner)


async def end(
    handle: Handle,
    task_id: UUID,
    owner: str,
    index: int,
    turn: Turn,
    made: Sequence[Call] = (),
    new: Sequence[results.NewEvent] = (),
) -> None:
    """Record the turn's observation, with repeatable calls that were made and new events.

    Raises ConflictError if the task has another owner.
    """
    keys = keys_of(handle)
    values = {"task": task_id, "claim": owner, "turn_index": index}
    values["turn_record"] = keys.encrypt_bytes(pack(turn))
    values |= {"events": results.parameter(new), **calls.parameters(keys, made)}
    if (await execute(handle, _END, values)).first() is None:
        raise lease.lost("task", task_id, owner)


async def explore(session: AsyncSession, task_id: UUID, owner: str, how: tables.Exploration) -> bool:
    """Record that the task explores, unless an earlier attempt left something: then it goes on as it began."""
    await lease.hold(session, task_id, owner)
    if await resumes(session, task_id):
        return False
    await session.execute(update(tables.Task).where(tables.Task.id == task_id).values(exploration=how))
    return True


async def begin_again(session: AsyncSession, task_id: UUID, owner: str, event: results.NewEvent) -> None:
    """Forget the turns and calls of a task that explored and has changed nothing. It explores no more.

    Raises ConflictError if the task has another owner.
    """
    await lease.hold(session, task_id, owner)
    for row in (_turn, tables.TaskCall):
        await session.execute(delete(row).where(row.task_id == task_id))
    stopped = {"exploration": tables.Exploration.STOPPED}
    await session.execute(update(tables.Task).where(tables.Task.id == task_id).values(stopped))
    await results.append_all(session, task_id, [event])


async def resumes(handle: Handle, task_id: UUID) -> bool:
    """Whether an earlier attempt at the task left turns, calls or approvals."""
    return bool((await execute(handle, _RESUMES, {"task": task_id})).scalar_one())


async def of_task(session: AsyncSession, task_id: UUID, limit: int | None = None) -> list[RecordedTurn]:
    """The turns of a task, or the first ones, in order."""
    rows = await session.scalars(
        select(tables.TaskTurn)
        .where(tables.TaskTurn.task_id == task_id)
        .order_by(tables.TaskTurn.index)
        .limit(limit)
        .execution_options(populate_existing=True)
    )
    keys = keys_of(session)
    return [
        RecordedTurn(row.index, msgspec.msgpack.decode(keys.decrypt_bytes(row.record), type=Turn), row.ended)
        for row in rows
    ]
