"""Tasks that were served and scored, for what asks only how many there are and how they were sampled."""

from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Stop
from app.db import results, tables
from app.db.tables import TaskState
from app.releases import store as releases
from tests.support.rows import task_row, trajectory_of, turn_of


async def serve_scored(
    session: AsyncSession, project_id: UUID, *scores: float | None, temperature: float = 1.0, **columns: Any
) -> None:
    """A task for each score, done by the active release, with `columns` of its row."""
    values = {
        "state": TaskState.DONE,
        "stop": Stop.COMPLETED,
        "release_id": (await releases.active(session, project_id)).id,
        "started_at": func.clock_timestamp(),
        "finished_at": func.clock_timestamp(),
    }
    for score in scores:
        task = await task_row(session, project_id)
        await session.execute(
            update(tables.Task).where(tables.Task.id == task.id).values({**values, "score": score, **columns})
        )
        await session.refresh(task)
        sampled = msgspec.structs.replace(trajectory_of(task, turn_of()), temperature=temperature)
        await results.save(session, project_id, sampled)
