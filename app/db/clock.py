"""Times by the database's clock, so that the clocks of processes need not agree."""

from datetime import timedelta

from sqlalchemy import ColumnElement, func, literal
from sqlalchemy.dialects.postgresql import INTERVAL


def from_now(seconds: float) -> ColumnElement[object]:
    return func.clock_timestamp() + literal(timedelta(seconds=seconds), INTERVAL)
