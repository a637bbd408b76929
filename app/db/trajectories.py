"""Trajectories in the database: one msgpack blob per task, plus the columns that are queried."""

from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.db.column_types import pack
from app.errors import NotFoundError
from app.records import Trajectory


async def save(session: AsyncSession, project_id: UUID, trajectory: Trajectory) -> None:
    """Store the trajectory of a task, or replace it."""
    given = {
        "project_id": project_id,
        "release_id": trajectory.policy.release,
        "record": pack(trajectory),
    }
    await session.execute(
        insert(models.Trajectory)
        .values(task_id=trajectory.task.id, **given)
        .on_conflict_do_update(index_elements=["task_id"], set_=given)
    )


async def of_task(session: AsyncSession, task_id: UUID) -> Trajectory:
    """Raises NotFoundError if there is none yet."""
    record = await session.scalar(select(models.Trajectory.record).where(models.Trajectory.task_id == task_id))
    if record is None:
        raise NotFoundError(f"task {task_id} has no trajectory: it has not ended, or never began")
    return msgspec.msgpack.decode(record, type=Trajectory)
