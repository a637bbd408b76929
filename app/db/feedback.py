"""Feedback on tasks, in the database."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError, NotFoundError
from app.base.values import ScoreSource
from app.db import results, tables


async def add(  # noqa: PLR0913 - the columns of a row
    session: AsyncSession,
    task_id: UUID,
    score: float,
    comment: str | None = None,
    *,
    author: str | None = None,
    scored_by: UUID | None = None,
    turn: int | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
) -> tables.Feedback:
    """Add feedback. The latest is the task's score; that of another source, which it replaces, is kept.

    `score` lies in [0, 1], whatever the `scale` that it was given on; `turn` is what the comment is about;
    `scored_by` is the key over which it came, None for a person at the console whom a link signed in.
    Raises InvalidError for another score, or a turn that the task did not have, NotFoundError, and ConflictError
    while the task has not ended.
    """
    if not 0 <= score <= 1:
        raise InvalidError(f"score is {score}: it must be between 0 and 1")
    task = await session.get(tables.Task, task_id, with_for_update=True)
    if task is None:
        raise NotFoundError(f"no task has the id {task_id}; GET /v1/tasks lists them")
    if task.finished_at is None:
        raise ConflictError(f"task {task_id} is {task.state}: wait for its end")
    if turn is not None and turn >= task.turns:
        raise InvalidError(f"turn {turn}: the task had {task.turns}, counted from 0")
    row = tables.Feedback(task_id=task_id, score=score, comment=comment, author=author, turn=turn)
    row.lowest, row.highest = scale
    session.add(row)
    results.put(task, score, ScoreSource.PERSON, scored_by=scored_by)
    await session.flush()
    return row


async def of_task(session: AsyncSession, task_id: UUID) -> Sequence[tables.Feedback]:
    """Oldest first."""
    query = select(tables.Feedback).where(tables.Feedback.task_id == task_id).order_by(tables.Feedback.created_at)
    return (await session.scalars(query)).all()
