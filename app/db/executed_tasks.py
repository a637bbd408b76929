"""Which of the tasks that ended were executed, so that their scores say how well."""

from typing import Any

from sqlalchemy import ColumnElement, FromClause, and_, false, func, or_

from app.db import tables
from app.db.tables import TaskState
from app.records import LIMITS, Stop


def executed(tasks: FromClause = tables.Task.__table__) -> ColumnElement[Any]:
    """SQL: a row of `tasks` is done, or failed as its agent did nothing; not as it could not be executed."""
    columns = tasks.c
    without_calls = and_(columns.calls == 0, columns.skill_run.is_(None), columns.stop.in_([*LIMITS]))
    nothing_done = or_(columns.stop == Stop.NOTHING_DONE, without_calls)
    return func.coalesce(or_(columns.state == TaskState.DONE, nothing_done), false())
