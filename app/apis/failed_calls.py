"""The calls of an API that failed in tasks."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import Integer, cast, func, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables

MOST_TASKS = 100
"""Tasks that are looked through, the latest."""


class FailedCall(msgspec.Struct, frozen=True, kw_only=True):
    """`api` is the operation with the name of its API, `skill` the one that made the call."""

    task_id: UUID
    instruction: str
    turn: int
    api: str
    error: str
    skill: str | None
    at: datetime


async def of_api(session: AsyncSession, project_id: UUID, name: str, limit: int = 20) -> Sequence[FailedCall]:
    """Newest first, of the project's latest tasks: no index has the calls by API."""
    task, event = tables.Task, tables.TaskEvent
    latest = (
        select(task.id, task.instruction)
        .where(task.project_id == project_id)
        .order_by(task.created_at.desc(), task.id.desc())
        .limit(MOST_TASKS)
        .subquery()
    )
    api, error = event.data["api"].astext, event.data["error"].astext
    failed = (
        select(
            cast(event.data["turn"].astext, Integer).label("turn"),
            api.label("api"),
            error.label("error"),
            event.data["skill"].astext.label("skill"),
            event.created_at.label("at"),
        )
        .where(event.task_id == latest.c.id, event.kind == "call")
        .where(func.split_part(api, ".", 1) == name, error.is_not(None))
        .order_by(event.seq.desc())
        .limit(limit)  # so that the events of each task are read by their key
        .lateral()
    )
    query = (
        select(latest.c.id.label("task_id"), latest.c.instruction, failed)
        .join(failed, true())
        .order_by(failed.c.at.desc())
        .limit(limit)
    )
    return [FailedCall(**row) for row in (await session.execute(query)).mappings()]
