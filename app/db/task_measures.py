"""What a finished task says about its release: reward, failure, turns and tokens, as SQL expressions."""

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, FromClause, and_, case, func, or_, select

from app.db import tables
from app.db.scores import proven
from app.db.tables import TaskState
from app.records import Stop


class TaskMeasures(NamedTuple):
    """Expressions over the rows of `tasks`, or of a subquery with its columns."""

    reward: ColumnElement[Any]  # in [0, 1]; 0 where the check gave no score; NULL without either, or a judge's
    scored_at: ColumnElement[Any]  # when the reward became known
    unscored: ColumnElement[bool]  # the reward is 0 because the check gave no score
    error: ColumnElement[Any]  # 1.0 if it failed, did not stop by completing, or its check gave no score
    is_done: ColumnElement[bool]  # it could be carried out: its turns and tokens count


def measures(tasks: FromClause) -> TaskMeasures:
    columns = tasks.c
    given = (
        select(func.min(tables.Feedback.created_at)).where(tables.Feedback.task_id == columns.id).scalar_subquery()
    )
    asked = tables.Verification
    verified = select(asked.finished_at).where(asked.task_id == columns.id).scalar_subquery()
    # Tasks whose check gave no score must count, or a release would be judged by its good answers alone.
    unscored = and_(columns.check_code != "", ~columns.checked)
    unscored_by_all = and_(unscored, columns.score.is_(None))
    wrong = or_(columns.state == TaskState.FAILED, columns.stop.is_distinct_from(Stop.COMPLETED), unscored)
    return TaskMeasures(
        reward=case((unscored_by_all, 0.0), else_=proven(tasks)),
        scored_at=case(
            (or_(columns.checked, unscored), func.coalesce(given, columns.finished_at)),
            else_=func.coalesce(given, verified),
        ),
        unscored=unscored_by_all,
        error=case((wrong, 1.0), else_=0.0),
        is_done=columns.state == TaskState.DONE,
    )
