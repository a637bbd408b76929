"""Scores and costs of tasks as sums, from which means and their intervals follow."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import CTE, ColumnElement, Double, and_, case, cast, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.tables import TaskState

_MOST = 5_000  # tasks of a release, the latest

_task = tables.Task


class ValueSums(NamedTuple):
    """A number of values, their sum, and that of their squares."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0


class TaskSums(NamedTuple):
    """Of scored tasks; turns and generated tokens of those that did not fail."""

    score: ValueSums = ValueSums()
    turns: ValueSums = ValueSums()
    tokens: ValueSums = ValueSums()


def sums_of(tasks: CTE, score: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    """Of rows of tasks with these scores, which `read_sums` reads."""
    carried_out = and_(tasks.c.state == TaskState.DONE, score.is_not(None))
    costs = (case((carried_out, each)) for each in (tasks.c.turns, tasks.c.generated_tokens))
    values = [cast(each, Double) for each in (score, *costs)]
    return [total for each in values for total in (func.count(each), _sum(each), _sum(each * each))]


def _sum(value: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(value), 0.0)


def read_sums(sums: Sequence[Any]) -> TaskSums:
    return TaskSums(*(ValueSums(*sums[start : start + 3]) for start in (0, 3, 6)))


async def of_release(session: AsyncSession, release_id: UUID) -> TaskSums:
    """Of its latest 5,000 tasks that ended and that nobody pinned to it."""
    columns = (_task.state, _task.score, _task.turns, _task.generated_tokens)
    ended = select(*columns).where(_task.release_id == release_id, _task.finished_at.is_not(None), ~_task.pinned)
    latest = ended.order_by(_task.started_at.desc()).limit(_MOST).cte("latest")
    return read_sums((await session.execute(select(*sums_of(latest, latest.c.score)))).one())
