"""The journal of API calls: a row is committed right before a call goes out, and completed with its result.

Arguments and results are encrypted: they hold passwords.
"""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    ARRAY,
    CTE,
    Boolean,
    Integer,
    LargeBinary,
    Text,
    Uuid,
    and_,
    bindparam,
    column,
    delete,
    exists,
    func,
    literal_column,
    null,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.encryption import KeyRing
from app.base.errors import ConflictError
from app.base.values import Call, Json
from app.db import lease, results, tables
from app.db.database import Handle, execute, keys_of, pack, to_json

_call = tables.TaskCall
_NAMES = ("task_id", "seq", "api", "arguments", "sealed_arguments", "repeatable", "record")
_NO_ARGUMENTS = literal_column("'{}'::jsonb", JSONB)  # they are encrypted


def recorded(held: CTE) -> CTE:
    """Part of a larger statement: records the calls that `parameters` prepares, for the task of `held`."""
    columns = (
        column("seq", Integer), column("api", Text), column("sealed", LargeBinary), column("record", LargeBinary)
    )  # fmt: skip
    arrays = [bindparam(f"made_{each.name}", type_=ARRAY(each.type)) for each in columns]
    made = func.unnest(*arrays).table_valued(*columns).render_derived(name="made")
    given = (held.c.id, made.c.seq, made.c.api, _NO_ARGUMENTS, made.c.sealed, true(), made.c.record)
    new = insert(_call).from_select(_NAMES, select(*given).join_from(held, made, true()))
    known = {name: new.excluded[name] for name in _NAMES[2:]}
    return new.on_conflict_do_update(index_elements=["task_id", "seq"], set_=known).cte("recorded")


def parameters(keys: KeyRing, made: Sequence[Call]) -> dict[str, list[Any]]:
    """Repeatable calls with their results, for `recorded`; they need no record before they go out."""
    return {
        "made_seq": [call.seq for call in made],
        "made_api": [call.api for call in made],
        "made_sealed": [_sealed(keys, call) for call in made],
        "made_record": [keys.encrypt_bytes(pack(call)) for call in made],
    }


_held = lease.held()
_recorded = recorded(_held)
_RECORD = select(_held.c.id, results.appended(_held.c.id)).add_cte(_recorded)

_repeatable = bindparam("call_repeatable", type_=Boolean)
_new = insert(_call).from_select(
    _NAMES,
    select(
        _held.c.id,
        bindparam("call_seq", type_=Integer),
        bindparam("call_api", type_=Text),
        _NO_ARGUMENTS,
        bindparam("call_sealed", type_=LargeBinary),
        _repeatable,
        null(),
    ),
)
_begun = (
    _new.on_conflict_do_update(
        index_elements=["task_id", "seq"],
        set_={name: _new.excluded[name] for name in _NAMES[2:]},
        where=_call.record.is_(None) & _call.repeatable & _new.excluded.repeatable,
    )
    .returning(_call.seq)
    .cte("begun")
)
_BEGIN = select(
    _held.c.id,
    select(func.count()).select_from(_begun).scalar_subquery().label("begun"),
    results.appended(_held.c.id),
).add_cte(_recorded, lease.extended(_held))

_goes_on = exists().where(tables.Task.id == _call.task_id, tables.Task.finished_at.is_(None))
_which = (_call.task_id == bindparam("task", type_=Uuid), _call.seq == bindparam("call_seq", type_=Integer))
_ended = (
    update(_call)
    .where(*_which, _goes_on)
    .values(record=bindparam("call_record", type_=LargeBinary))
    .returning(_call.task_id)
    .cte("ended")
)
_END = select(_ended.c.task_id, results.appended(_ended.c.task_id))
_lacks_result = and_(_call.record.is_(None), ~_call.repeatable)
_UNDO = delete(_call).where(
    *_which, _lacks_result, _goes_on, _call.sealed_arguments == bindparam("call_sealed", type_=LargeBinary)
)


class JournalCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier attempt. Without a result it is unknown whether it took effect."""

    seq: int
    api: str
    arguments: dict[str, Json]
    repeatable: bool  # safe to send again
    call: Call | None


async def begin(  # noqa: PLR0913 - all that is committed together
    handle: Handle,
    task_id: UUID,
    owner: str,
    call: Call,
    *,
    repeatable: bool,
    sealed: bytes | None = None,
    seconds: float = 0,
    made: Sequence[Call] = (),
    new: Sequence[results.NewEvent] = (),
) -> None:
    """Record a call; commit this before it goes out. A repeatable call without a result may begin again.
    `sealed` is what `seal` made of it.

    `made` are repeatable calls before it, and `new` the events to append. Nobody else can claim the task for
    `seconds` from now. Raises ConflictError if the call went out before, or the task is no longer the owner's.
    """
    keys = keys_of(handle)
    values = {"task": task_id, "claim": owner, "events": results.parameter(new), **parameters(keys, made)}
    values |= {"call_seq": call.seq, "call_api": call.api, "call_sealed": sealed or _sealed(keys, call)}
    values |= {"call_repeatable": repeatable, "hold_seconds": seconds}
    row = (await execute(handle, _BEGIN, values)).first()
    if row is None:
        raise lease.lost("task", task_id, owner)
    if not row.begun:
        raise ConflictError(f"call {call.seq} of task {task_id} ({call.api}) went out before")


def seal(handle: Handle, call: Call) -> bytes:
    """The arguments, encrypted: no other sealing is the same, so that they identify the row."""
    return _sealed(keys_of(handle), call)


async def undo(handle: Handle, task_id: UUID, seq: int, sealed: bytes) -> None:
    """Take back that a call began, as it was not sent after all, also if the task has another owner by now.

    Nothing happens if it did not begin, or the task has ended.
    """
    await execute(handle, _UNDO, {"task": task_id, "call_seq": seq, "call_sealed": sealed})


async def end(handle: Handle, task_id: UUID, call: Call, new: Sequence[results.NewEvent] = ()) -> bool:
    """Record the result with new events, also if the task has another owner by now: the call has taken effect.

    False, and nothing is written, if the task has ended.
    """
    record = keys_of(handle).encrypt_bytes(pack(call))
    values = {"task": task_id, "call_seq": call.seq, "call_record": record, "events": results.parameter(new)}
    return (await execute(handle, _END, values)).first() is not None


async def settle(session: AsyncSession, task_id: UUID, call: Call, *, arrived: bool, result: Json = None) -> None:
    """Complete a call without a result with this one, or forget a call that did not arrive."""
    which = _call.task_id == task_id, _call.seq == call.seq, _lacks_result
    if not arrived:
        await session.execute(delete(_call).where(*which))
        return
    done = keys_of(session).encrypt_bytes(pack(msgspec.structs.replace(call, result=result)))
    await session.execute(update(_call).where(*which).values(record=done))


async def record(
    handle: Handle, task_id: UUID, owner: str, made: Sequence[Call], new: Sequence[results.NewEvent] = ()
) -> None:
    """Record repeatable calls with their results, and append events.

    Raises ConflictError if the task is no longer the owner's: another runner repeats the calls.
    """
    values = {"task": task_id, "claim": owner, "events": results.parameter(new)}
    if (await execute(handle, _RECORD, values | parameters(keys_of(handle), made))).first() is None:
        raise lease.lost("task", task_id, owner)


async def of_task(session: AsyncSession, task_id: UUID) -> list[JournalCall]:
    """The calls of a task, in order of `seq`."""
    rows = await session.scalars(
        select(tables.TaskCall)
        .where(tables.TaskCall.task_id == task_id)
        .order_by(tables.TaskCall.seq)
        .execution_options(populate_existing=True)
    )
    keys = keys_of(session)
    return [_journal_call(row, keys) for row in rows]


def _sealed(keys: KeyRing, call: Call) -> bytes:
    """What the call was given, encrypted: arguments may be passwords."""
    return keys.encrypt_bytes(to_json(call.arguments).encode())


def _journal_call(row: tables.TaskCall, keys: KeyRing) -> JournalCall:
    call = None if row.record is None else msgspec.msgpack.decode(keys.decrypt_bytes(row.record), type=Call)
    arguments = row.arguments
    if row.sealed_arguments is not None:
        arguments = json.loads(keys.decrypt_bytes(row.sealed_arguments))
    return JournalCall(seq=row.seq, api=row.api, arguments=arguments, repeatable=row.repeatable, call=call)
