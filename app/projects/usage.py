"""What each project used, by day, and what its tasks of hosted models cost. Days are UTC, by the database's
clock.
"""

import zlib
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Date, Integer, Uuid, bindparam, cast, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.base.values import Trajectory, hosted_id
from app.db import tables
from app.db.database import execute
from app.db.lease import process_of

_usage = tables.ProjectUsage
_RUNNERS = 16  # rows of a project and day that runners write to
OF_TASKS = ("turns", "generated_tokens", "calls", "prompt_tokens", "cost")  # columns that a task has, too
SUBMISSIONS = 0  # the row that submissions write to, one at a time
_DAY = cast(func.timezone("UTC", func.statement_timestamp()), Date)
_PRICED = 1_000_000  # tokens


class UsageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by how they ended, and what those that ended have used."""

    submitted: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    turns: int = 0
    generated_tokens: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    cost: float = 0.0
    """Of hosted models whose prices are known, in their unit."""
    other_cost: float = 0.0
    """The part of `cost` that was for no task: for trials, exams, shadows, judges and experts. Their tokens do not
    count above."""


class UsageOfDay(UsageCounts, frozen=True, kw_only=True):
    day: date


_names = UsageCounts.__struct_fields__
_row = insert(_usage).values(
    project_id=bindparam("to_project", type_=Uuid),
    day=_DAY,
    writer=bindparam("by_writer", type_=Integer),
    **{name: bindparam(f"added_{name}", type_=_usage.__table__.c[name].type) for name in _names},
)
_ADD = _row.on_conflict_do_update(
    index_elements=["project_id", "day", "writer"],
    set_={name: getattr(_usage, name) + _row.excluded[name] for name in _names},
)


async def add(session: AsyncSession, project_id: UUID, writer: int, **counts: float) -> None:
    """Add to today's usage. The row stays locked until the transaction ends."""
    values = dict.fromkeys(_names, 0) | counts
    added = {f"added_{name}": count for name, count in values.items()}
    await execute(session, _ADD, {"to_project": project_id, "by_writer": writer, **added})


def writer_of(owner: str) -> int:
    """The row that a runner adds to."""
    return 1 + zlib.crc32(process_of(owner).encode()) % _RUNNERS


def today(column: str, project_id: ColumnElement[UUID]) -> ColumnElement[float]:
    """The sum of today's column, as a subquery."""
    row = aliased(_usage)
    total = func.coalesce(func.sum(getattr(row, column)), 0)
    return select(total).where(row.project_id == project_id, row.day == _DAY).scalar_subquery()


async def of_days(session: AsyncSession, project_id: UUID, days: int) -> list[UsageOfDay]:
    """Today and the days before, newest first, without those on which nothing happened."""
    sums = [func.sum(getattr(_usage, name)).label(name) for name in _names]
    rows = await session.execute(
        select(_usage.day, *sums)
        .where(_usage.project_id == project_id, _usage.day > _DAY - days)
        .group_by(_usage.day)
        .order_by(_usage.day.desc())
    )
    kinds = UsageCounts.__annotations__
    return [UsageOfDay(day=row.day, **{name: kinds[name](getattr(row, name)) for name in _names}) for row in rows]


async def of_today(session: AsyncSession, project_id: UUID) -> UsageCounts:
    return next(iter(await of_days(session, project_id, 1)), UsageCounts())


async def clock(session: AsyncSession) -> datetime:
    """The database's time, in UTC."""
    now: datetime = (await session.scalars(select(func.statement_timestamp()))).one()
    return now.astimezone(UTC)


def next_day(now: datetime) -> datetime:
    """
    >>> next_day(datetime(2026, 2, 28, 23, 59, tzinfo=UTC)).isoformat()
    '2026-03-01T00:00:00+00:00'
    """
    return datetime.combine(now.date() + timedelta(days=1), time(), UTC)


async def of_trajectory(session: AsyncSession, trajectory: Trajectory) -> float | None:
    """In the unit of the prices. None where these are unknown, and of a model server's model."""
    model_id = hosted_id(trajectory.policy.model)
    used = trajectory.prompt_tokens, trajectory.generated_tokens
    return await _of_tokens(session, model_id, *used) if model_id else None


async def charge(
    session: AsyncSession,
    project_id: UUID,
    owner: str,
    model_id: UUID,
    read: int,
    generated: int,
    *,
    of_task: bool = False,
) -> None:
    """Count for its project what a hosted model cost, and no end of a task counts. Tokens only count `of_task`;
    what was not for one is told apart.
    """
    cost = await _of_tokens(session, model_id, read, generated) or 0
    more = {"prompt_tokens": read, "generated_tokens": generated} if of_task else {"other_cost": cost}
    if cost or any(more.values()):
        await add(session, project_id, writer_of(owner), cost=cost, **more)


async def _of_tokens(session: AsyncSession, model_id: UUID, read: int, generated: int) -> float | None:
    entry = await session.get(tables.HostedModel, model_id)
    if entry is None or entry.price_in is None or entry.price_out is None:
        return None
    return (read * entry.price_in + generated * entry.price_out) / _PRICED
