"""Which tasks of a project an expert, a hosted model, could do again."""

from collections.abc import Sequence
from enum import StrEnum
from uuid import UUID

from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, aliased

from app.base.values import GOOD, Stop, hosted
from app.db import tables
from app.db.tables import TaskState

_task = tables.Task


class Wanted(StrEnum):
    """How the tasks ended."""

    FAILED = "failed"  # without success, by their score or as they could not be done
    UNSCORED = "unscored"  # completed, and nobody knows how well


async def latest(
    session: AsyncSession, project_id: UUID, model_id: UUID, wanted: Wanted, limit: int
) -> Sequence[tables.Task]:
    """Newest first, those left out that this model has worked on before, or is about to, as an expert or not."""
    unscored = _task.score.is_(None)
    completed = and_(_task.state == TaskState.DONE, _task.stop == Stop.COMPLETED)
    if wanted is Wanted.UNSCORED:
        ended = and_(completed, unscored)
    else:
        ended = and_(
            _task.state.in_([TaskState.FAILED, TaskState.DONE]),
            or_(_task.score < GOOD, and_(unscored, ~completed)),
        )
    query = select(_task).where(
        _task.project_id == project_id,
        ended,
        _task.skill_run.is_(None),
        _task.repairs.is_(None),
        ~_task.reads_only,
        ~_served_by(_task.release_id, model_id),
        ~_tried(model_id),
    )
    return (await session.scalars(query.order_by(_task.created_at.desc(), _task.id.desc()).limit(limit))).all()


def _tried(model_id: UUID) -> ColumnElement[bool]:
    """It is queued with the model, or was done again with it. One that did not come to a first answer, such as for
    a bad key, may be tried again.
    """
    again = aliased(_task)
    begun = or_(again.finished_at.is_(None), again.turns > 0)
    return exists().where(again.rerun_of == _task.id, begun, _served_by(again.release_id, model_id))


def _served_by(release_id: InstrumentedAttribute[UUID | None], model_id: UUID) -> ColumnElement[bool]:
    release = tables.Release
    return exists().where(release.id == release_id, release.model == hosted(model_id))
