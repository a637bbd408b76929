"""How a project's tasks ended, and what they cost: over time, by scenario, release or skill, each counted once."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Double,
    FromClause,
    Subquery,
    Text,
    Uuid,
    and_,
    case,
    cast,
    func,
    not_,
    null,
    select,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import GOOD, Stop
from app.db import tables
from app.db.queries import ago
from app.db.tables import TaskState

MOST_TASKS = {"skill": 100_000}  # of the window that are counted, the newest: skills are not in the index
_MOST_TASKS = 1_000_000

_task = tables.Task
_SAYS_SOMETHING = (Stop.COMPLETED, Stop.NO_CODE)  # without a score, nobody knows whether that is right
_WINDOW = timedelta(days=30)
_MOST = 100_000  # tasks that are counted, the newest: no index has why they stopped
_MOST_OF_KINDS = 5_000


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

    @property
    def length(self) -> timedelta:
        return timedelta(**{f"{self.value}s": 1})


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


def _window(project_id: UUID, since: datetime, until: datetime, most: int) -> Subquery:
    """Columns of an index, which is read without the table."""
    columns = (
        _task.id, _task.state, _task.finished_at, _task.started_at, _task.scenario, _task.release_id, _task.score,
        _task.turns, _task.generated_tokens,
    )  # fmt: skip
    ended = and_(_task.project_id == project_id, _task.finished_at >= since, _task.finished_at < until)
    newest = select(*columns).where(ended).order_by(_task.finished_at.desc())
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
    scored, succeeded = ended.c.score.is_not(None), ended.c.score >= GOOD
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


class OutcomeColumns(NamedTuple):
    """SQL, never NULL: exactly one is true of a row of tasks that ended and was not cancelled."""

    solved: ColumnElement[bool]
    unscored: ColumnElement[bool]
    failed: ColumnElement[bool]


class OutcomeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that ended in one bucket of time. Failed are also those that reached a limit without a score."""

    start: datetime
    solved: int
    unscored: int
    failed: int


class FailingKind(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of one scenario or, without any, of one instruction, of which at least half failed lately."""

    name: str
    failed: int
    tasks: int
    latest: UUID  # the last one that failed
    stop: Stop | None  # of that one
    score: float | None


def outcome_columns(tasks: FromClause) -> OutcomeColumns:
    columns = tasks.c
    is_done = columns.state == TaskState.DONE
    solved = func.coalesce(and_(is_done, columns.score >= GOOD), False)
    unscored = func.coalesce(and_(is_done, columns.score.is_(None), columns.stop.in_(_SAYS_SOMETHING)), False)
    return OutcomeColumns(solved, unscored, and_(not_(solved), not_(unscored)))


async def over_time(
    session: AsyncSession, project_id: UUID, since: datetime, bucket: TimeBucket
) -> list[OutcomeCounts]:
    """Oldest first."""
    ended = _latest_ended(project_id, since, _MOST)
    of = outcome_columns(ended)
    start = func.date_trunc(bucket.value, ended.c.finished_at, "UTC").label("start")
    counts = [func.count().filter(each).label(name) for name, each in of._asdict().items()]
    rows = await session.execute(select(start, *counts).group_by(start).order_by(start))
    return [OutcomeCounts(**row) for row in rows.mappings()]


async def count_failed(session: AsyncSession, project_id: UUID) -> int:
    """Of the last 30 days."""
    ended = _latest_ended(project_id, ago(_WINDOW.total_seconds()), _MOST)
    failed = func.count().filter(outcome_columns(ended).failed)
    return (await session.scalars(select(failed).select_from(ended))).one()


async def failing_kinds(session: AsyncSession, project_id: UUID, limit: int) -> list[FailingKind]:
    """Of the latest tasks of the last 30 days, the kinds with most failures first."""
    ended = _latest_ended(project_id, ago(_WINDOW.total_seconds()), _MOST_OF_KINDS)
    has_failed = outcome_columns(ended).failed
    name = func.coalesce(ended.c.scenario, ended.c.instruction).label("name")
    failed = func.count().filter(has_failed).label("failed")
    newest = case((has_failed, ended.c.finished_at)).desc().nulls_last()
    of_failed = func.array_agg(aggregate_order_by(case((has_failed, ended.c.id)), newest), type_=ARRAY(Uuid))
    kinds = (
        select(name, failed, func.count().label("tasks"), of_failed[1].label("latest"))
        .group_by(name)
        .having(and_(failed > 0, 2 * failed >= func.count()))
        .order_by(failed.desc(), name)
        .limit(limit)
        .subquery()
    )
    query = select(kinds, _task.stop, _task.score).join(_task, _task.id == kinds.c.latest)
    rows = (await session.execute(query.order_by(kinds.c.failed.desc(), kinds.c.name))).mappings()
    return [FailingKind(**row) for row in rows]


def _latest_ended(project_id: UUID, since: Any, most: int) -> Subquery:
    """Without those that do others again, or repair a skill: many end where they want to change something."""
    columns = (
        _task.id, _task.state, _task.stop, _task.score, _task.scenario, _task.instruction, _task.finished_at
    )  # fmt: skip
    return (
        select(*columns)
        .where(_task.project_id == project_id, _task.finished_at >= since)
        .where(_task.state.in_([TaskState.DONE, TaskState.FAILED]), ~_task.reads_only, _task.repairs.is_(None))
        .order_by(_task.finished_at.desc())
        .limit(most)
        .subquery("ended")
    )
