"""How tasks ended, each counted once: solved, failed, or unscored."""

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import ARRAY, ColumnElement, FromClause, Subquery, Uuid, and_, case, func, not_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.clock import ago
from app.db.statistics import TimeBucket
from app.db.tables import TaskState
from app.records import Stop
from app.score_source import GOOD

_SAYS_SOMETHING = (Stop.COMPLETED, Stop.NO_CODE)  # without a score, nobody knows whether that is right
_WINDOW = timedelta(days=30)
_MOST = 100_000  # tasks that are counted, the newest: no index has why they stopped
_MOST_OF_KINDS = 5_000

_task = tables.Task


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
    ended = _ended(project_id, since, _MOST)
    of = outcome_columns(ended)
    start = func.date_trunc(bucket.value, ended.c.finished_at, "UTC").label("start")
    counts = [func.count().filter(each).label(name) for name, each in of._asdict().items()]
    rows = await session.execute(select(start, *counts).group_by(start).order_by(start))
    return [OutcomeCounts(**row) for row in rows.mappings()]


async def count_failed(session: AsyncSession, project_id: UUID) -> int:
    """Of the last 30 days."""
    ended = _ended(project_id, ago(_WINDOW.total_seconds()), _MOST)
    failed = func.count().filter(outcome_columns(ended).failed)
    return (await session.scalars(select(failed).select_from(ended))).one()


async def failing_kinds(session: AsyncSession, project_id: UUID, limit: int) -> list[FailingKind]:
    """Of the latest tasks of the last 30 days, the kinds with most failures first."""
    ended = _ended(project_id, ago(_WINDOW.total_seconds()), _MOST_OF_KINDS)
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


def _ended(project_id: UUID, since: Any, most: int) -> Subquery:
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
