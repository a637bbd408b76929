"""What only the claim that holds a task may do: write to it, and let it wait.

A write that must not happen once another runner has the task begins with `hold`, or is part of a statement
with `held`.
"""

from uuid import UUID

from sqlalchemy import CTE, Double, Text, Uuid, bindparam, cast, func, literal_column, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import lease, tables
from app.db.clock import from_now
from app.db.notifications import TASKS, notify
from app.db.tables import TaskState

_task = tables.Task
RUNNING = _task.state == literal_column("'running'")  # a literal: a parameter would match no partial index
QUEUE = lease.LeaseQueue(_task, RUNNING)


async def hold(session: AsyncSession, task_id: UUID, owner: str) -> None:
    """Keep others from claiming the task until this transaction ends. Raises ConflictError if one has already."""
    held = select(_task.id).where(QUEUE.held(owner, _task.id == task_id)).with_for_update(read=True)
    if await session.scalar(held) is None:
        raise lease.lost("task", task_id, owner)


async def hold_for(session: AsyncSession, task_id: UUID, owner: str, seconds: float) -> None:
    """Keep others from claiming the task for so many seconds from now, also if its lease has expired.

    Raises ConflictError if one has claimed it already.
    """
    held = select(_task.lease_until < from_now(seconds)).where(QUEUE.held(owner, _task.id == task_id))
    soon = await session.scalar(held.with_for_update(read=True))
    if soon is None:
        raise lease.lost("task", task_id, owner)
    if soon:
        await session.execute(QUEUE.extend(owner, seconds, _task.id == task_id))


async def suspend(session: AsyncSession, task_id: UUID, owner: str) -> bool:
    """Let the task wait, without an owner, until `wake`; the attempt does not count.

    False, and nothing is written: its cancellation was requested. Raises ConflictError if it has another owner.
    """
    running = QUEUE.held(owner, _task.id == task_id, ~_task.cancel_requested)
    waiting = {
        "state": TaskState.WAITING,
        "owner": None,
        "lease_until": None,
        "attempt": _task.attempt - 1,
        "alone": False,
    }
    if await session.scalar(update(_task).where(running).values(**waiting).returning(_task.id)) is not None:
        return True
    await hold(session, task_id, owner)
    return False


async def wake(session: AsyncSession, task_id: UUID) -> None:
    """Let a runner resume a task that waits."""
    waits = (_task.id == task_id, _task.state == TaskState.WAITING)
    await session.execute(update(_task).where(*waits).values(state=TaskState.RUNNING))
    await notify(session, TASKS)


def held() -> CTE:
    """As `hold`, for a larger statement: the row of the task `:task` while it is of the owner `:claim`."""
    which = QUEUE.held(bindparam("claim", type_=Text), _task.id == bindparam("task", type_=Uuid))
    return select(_task.id).where(which).with_for_update(read=True).cte("held")


def extended(held: CTE) -> CTE:
    """Part of a larger statement: as `hold_for`, for `:hold_seconds`."""
    seconds = cast(bindparam("hold_seconds", type_=Double), Double)
    until = func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    soon = (_task.id == held.c.id, _task.lease_until < until)
    return update(_task).where(*soon).values(lease_until=until).cte("extended")
