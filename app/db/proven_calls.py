"""Which operations the successful tasks of a project have called."""

from typing import Any
from uuid import UUID

from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import GOOD
from app.db import tables
from app.db.results import proven

MOST_TASKS = 1_000
"""Tasks that are looked through, the latest: no index has the calls by API."""


async def has_called(session: AsyncSession, project_id: UUID, api: str) -> bool:
    """Whether one of the project's latest tasks that a person, a check or a verifier scored as a success has
    called this "app.operation", and the call returned. Events that were deleted are not seen.
    """
    task, event = tables.Task, tables.TaskEvent
    good = (
        select(task.id)
        .where(task.project_id == project_id, task.score >= GOOD, proven() >= GOOD)
        .order_by(task.created_at.desc(), task.id.desc())
        .limit(MOST_TASKS)
        .subquery()
    )
    data: Any = event.data
    made = exists().where(
        event.task_id == good.c.id,
        event.kind == "call",
        data["api"].astext == api,
        data["error"].astext.is_(None),
    )
    return await session.scalar(select(good.c.id).where(made).limit(1)) is not None
