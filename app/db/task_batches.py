"""Finished tasks with their trajectories, batch by batch: any number of them."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Row, Select, select, tuple_

from app.db import tables, tasks
from app.db.database import Sessions, reading

_BATCH = 200  # that are read by one query


async def batches(
    sessions: Sessions, only: tasks.TaskFilter, limit: int | None = None
) -> AsyncIterator[Sequence[Row[tables.Task, bytes]]]:
    """Tasks with their trajectories as they are stored, newest first. Each batch is read in a session of its own:
    between two of them nothing is held.
    """
    position, left = None, limit
    while left is None or left > 0:
        size = _BATCH if left is None else min(_BATCH, left)
        async with reading(sessions) as session:
            rows = (await session.execute(_following(only, position).limit(size))).all()
        if rows:
            yield rows
            position = rows[-1][0].created_at, rows[-1][0].id
        if len(rows) < size:
            return
        left = None if left is None else left - size


def _following(only: tasks.TaskFilter, position: tuple[datetime, UUID] | None) -> Select[tables.Task, bytes]:
    task, trajectory = tables.Task, tables.Trajectory
    query = select(task, trajectory.record).join(trajectory, trajectory.task_id == task.id)
    query = query.where(*tasks.conditions(only, task.created_at)).order_by(task.created_at.desc(), task.id.desc())
    return query if position is None else query.where(tuple_(task.created_at, task.id) < tuple_(*position))
