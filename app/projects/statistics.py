"""Success and cost of ended tasks over time, by scenario, release or skill."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Double, Subquery, Text, and_, cast, func, null, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.tables import TaskState

MOST_TASKS = {"skill": 100_000}  # of the window that are counted, the newest: skills are not in the index
_MOST_TASKS = 1_000_000
_SUCCESS = 0.5

_task = tables.Task


class Grouping(StrEnum):
    """What tasks are counted by."""

    SCENARIO = "scenario"
    RELEASE = "release"
    SKILL = "skill"  # that the task used


class TimeBucket(StrEnum):
    """A length of time, in UTC."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"  # from Monday


class TaskStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The done and failed tasks of one key that ended in one bucket of time. Means are of all of them.

    `success` is the share of the `scored` ones with a score of at least 0.5; null without any.
    """

    key: str | None
    """The scenario, the id of the release or the skill; null: tasks without one, or all tasks."""
    start: datetime
    tasks: int
    failed: int
    scored: int
    succeeded: int
    success: float | None
    turns: float
    generated_tokens: float
    seconds: float | None


class CountedTasks(msgspec.Struct, frozen=True):
    """The statistics, and the end of the oldest task that is in them; None: all of the window are."""

    rows: list[TaskStatistics]
    counted_from: datetime | None


async def of_project(
    session: AsyncSession,
    project_id: UUID,
    by: Grouping | None,
    since: datetime,
    until: datetime,
    bucket: TimeBucket,
    keys: int,
) -> CountedTasks:
    """Of the `keys` keys with the most tasks that ended from `since` up to, not at, `until`. Newest first."""
    most = MOST_TASKS.get(by or "", _MOST_TASKS)
    ended = _window(project_id, since, until, most)
    counted = _counted(ended, by, bucket)
    largest = (
        select(counted.c.key, func.sum(counted.c.tasks).label("tasks"))
        .group_by(counted.c.key)
        .order_by(func.sum(counted.c.tasks).desc(), counted.c.key)
        .limit(keys)
        .subquery()
    )
    query = (
        select(counted)
        .join(largest, largest.c.key.is_not_distinct_from(counted.c.key))
        .order_by(counted.c.start.desc(), largest.c.tasks.desc(), counted.c.key)
    )
    rows = [TaskStatistics(**row) for row in (await session.execute(query)).mappings()]
    oldest = await session.scalar(_boundary(project_id, since, until, most))
    return CountedTasks(rows, oldest)


def _ended(project_id: UUID, since: datetime, until: datetime) -> ColumnElement[bool]:
    return and_(_task.project_id == project_id, _task.finished_at >= since, _task.finished_at < until)


def _window(project_id: UUID, since: datetime, until: datetime, most: int) -> Subquery:
    """Columns of an index, which is read without the table."""
    columns = (
        _task.id,
        _task.state,
        _task.finished_at,
        _task.started_at,
        _task.scenario,
        _task.release_id,
        _task.score,
        _task.turns,
        _task.generated_tokens,
    )
    newest = select(*columns).where(_ended(project_id, since, until)).order_by(_task.finished_at.desc())
    return newest.limit(most).subquery("ended")


def _boundary(project_id: UUID, since: datetime, until: datetime, most: int) -> Any:
    """The end of the last task that is counted, if there is one after it."""
    window = _window(project_id, since, until, most + 1)
    ends = select(window.c.finished_at).order_by(window.c.finished_at).limit(2).subquery()
    beyond = select(func.count() > most).select_from(window).scalar_subquery()
    return select(func.max(ends.c.finished_at)).where(beyond)


def _counted(ended: Subquery, by: Grouping | None, bucket: TimeBucket) -> Subquery:
    offer = tables.SkillOffer
    keys: dict[Grouping | None, ColumnElement[Any]] = {
        Grouping.SCENARIO: ended.c.scenario,
        Grouping.RELEASE: cast(ended.c.release_id, Text),
        Grouping.SKILL: cast(offer.skill_id, Text),
        None: cast(null(), Text),
    }
    key = keys[by].label("key")
    start = func.date_trunc(bucket.value, ended.c.finished_at, "UTC").label("start")
    scored, succeeded = ended.c.score.is_not(None), ended.c.score >= _SUCCESS
    all_scored, good = func.count().filter(scored), func.count().filter(succeeded)
    means = {
        "success": cast(good, Double) / func.nullif(all_scored, 0),
        "turns": cast(func.avg(ended.c.turns), Double),
        "generated_tokens": cast(func.avg(ended.c.generated_tokens), Double),
        "seconds": cast(func.extract("epoch", func.avg(ended.c.finished_at - ended.c.started_at)), Double),
    }
    query = (
        select(
            key,
            start,
            func.count().label("tasks"),
            func.count().filter(ended.c.state == TaskState.FAILED).label("failed"),
            all_scored.label("scored"),
            good.label("succeeded"),
            *(mean.label(name) for name, mean in means.items()),
        )
        .where(ended.c.state.in_([TaskState.DONE, TaskState.FAILED]))
        .group_by(key, start)
    )
    if by is Grouping.SKILL:
        query = query.join(offer, and_(offer.task_id == ended.c.id, offer.returned > 0))
    return query.cte("counted")  # type: ignore[return-value]
