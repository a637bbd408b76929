"""Times by the database's clock, so that the clocks of processes need not agree."""

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.dialects.postgresql import INTERVAL
from sqlalchemy.ext.asyncio import AsyncSession


def from_now(seconds: float) -> ColumnElement[object]:
    return func.clock_timestamp() + literal(timedelta(seconds=seconds), INTERVAL)


def ago(seconds: float) -> ColumnElement[object]:
    """As `from_now`, in the past, for a condition: what is computed once is looked up in an index, and the clock,
    which goes on, is not.
    """
    return select(from_now(-seconds)).scalar_subquery()


async def now(session: AsyncSession) -> datetime:
    time: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return time
