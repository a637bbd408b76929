"""Trajectories in the database: one msgpack blob per task, plus the columns that are queried."""

from uuid import UUID, uuid4

import msgspec
from sqlalchemy import LargeBinary, Uuid, bindparam, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.column_types import pack
from app.db.database import execute
from app.errors import NotFoundError
from app.records import Trajectory

_trajectory = tables.Trajectory
_new = insert(_trajectory).values(
    id=bindparam("new_id", type_=Uuid),
    task_id=bindparam("of_task", type_=Uuid),
    project_id=bindparam("of_project", type_=Uuid),
    release_id=bindparam("of_release", type_=Uuid),
    record=bindparam("packed", type_=LargeBinary),
)
_SAVE = _new.on_conflict_do_update(
    index_elements=["task_id"],
    set_={name: _new.excluded[name] for name in ("project_id", "release_id", "record")},
)


async def save(session: AsyncSession, project_id: UUID, trajectory: Trajectory) -> None:
    """Store the trajectory of a task, or replace it."""
    values = {
        "new_id": uuid4(),
        "of_task": trajectory.task.id,
        "of_project": project_id,
        "of_release": trajectory.policy.release,
        "packed": pack(trajectory),
    }
    await execute(session, _SAVE, values)


async def of_task(session: AsyncSession, task_id: UUID) -> Trajectory:
    """Raises NotFoundError if there is none yet."""
    record = await session.scalar(select(tables.Trajectory.record).where(tables.Trajectory.task_id == task_id))
    if record is None:
        raise NotFoundError(f"task {task_id} has no trajectory: it has not ended, or never began")
    return msgspec.msgpack.decode(record, type=Trajectory)
