"""How much work there is that has not ended."""

import msgspec
from sqlalchemy import func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.approvals import store as approvals
from app.db import tables
from app.db.fair_queue import ACCEPTED
from app.db.lease import RUNNING
from app.db.tables import TaskState


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tasks, and how many seconds ago the oldest queued one was sent."""

    queued: int
    running: int
    waiting: int  # for a person
    oldest_seconds: float


async def read(session: AsyncSession) -> QueueDepth:
    """Of all projects."""
    task = tables.Task
    age = func.extract("epoch", func.clock_timestamp() - func.min(task.created_at))
    query = select(task.state, func.count(), age).where(or_(ACCEPTED, RUNNING)).group_by(task.state)
    found = {state: (count, float(seconds)) for state, count, seconds in await session.execute(query)}
    queued, oldest = found.get(TaskState.ACCEPTED, (0, 0.0))
    return QueueDepth(
        queued=queued,
        running=found.get(TaskState.RUNNING, (0, 0.0))[0],
        waiting=await approvals.count_waiting(session),
        oldest_seconds=oldest,
    )
