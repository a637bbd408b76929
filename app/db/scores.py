"""The score of a task: given by several sources, of which the strongest counts."""

from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, FromClause, case, null
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.score_source import GOOD, ScoreSource


async def give(
    session: AsyncSession, task_id: UUID, score: float, source: ScoreSource, *, judged_by: str | None = None
) -> bool:
    """As `put`, for a task that may have been deleted."""
    task = await session.get(tables.Task, task_id, with_for_update=True, populate_existing=True)
    return task is not None and put(task, score, source, judged_by=judged_by)


def put(
    task: tables.Task,
    score: float,
    source: ScoreSource,
    *,
    judged_by: str | None = None,
    scored_by: UUID | None = None,
) -> bool:
    """Score a task whose row is locked. False: a score of a stronger source is there, and stays.

    The first score that yields to another one is kept as `overruled_score`; that of a judge, until another judge
    gives its own. `judged_by` names the judge, `scored_by` the key over which a person's score came.
    """
    there = task.score_source
    _widen(task, score, source)
    if there is not None and source.yields_to(there):
        if task.overruled_score is None or (source is ScoreSource.JUDGE and task.judged_by is not None):
            task.overruled_score, task.judged_by = score, judged_by
        return False
    if there is not source and task.overruled_score is None:
        task.overruled_score = task.score
    task.score, task.score_source, task.scored_by = score, source, scored_by
    if source is ScoreSource.JUDGE:
        task.judged_by = judged_by
    return True


def _widen(task: tables.Task, score: float, source: ScoreSource) -> None:
    """Note how far scores lie apart: of several sources, or of several people. Others of one source replace it."""
    if task.score is None or (source is task.score_source and source is not ScoreSource.PERSON):
        return
    known = [each for each in (task.lowest_score, task.highest_score) if each is not None]
    task.lowest_score = min(task.score, score, *known)
    task.highest_score = max(task.score, score, *known)


def proven(tasks: FromClause = tables.Task.__table__) -> ColumnElement[Any]:
    """SQL: the score of a row of `tasks`, NULL if a judge gave it. What a judge says promotes nothing."""
    by_judge = tasks.c.score_source == ScoreSource.JUDGE
    return case((by_judge, null()), else_=tasks.c.score)


def independent(author: UUID | None, tasks: FromClause = tables.Task.__table__) -> ColumnElement[Any]:
    """SQL: as `proven`, but for good scores that the key `author` gave itself the one that they replaced."""
    if author is None:
        return proven(tasks)
    own = (tasks.c.scored_by == author) & (tasks.c.score >= GOOD)
    replaced = case((tasks.c.judged_by.is_(None), tasks.c.overruled_score), else_=null())
    return case((own, replaced), else_=proven(tasks))
