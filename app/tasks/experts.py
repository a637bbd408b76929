"""Has an expert, a hosted model of a project, do some of its tasks again, without changing anything."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, and_, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, aliased

from app.base.values import GOOD, Stop, hosted
from app.db import tables
from app.db.tables import AuditAction, TaskState
from app.projects import audit
from app.projects.settings import Limits
from app.releases import hosted_models
from app.releases import store as releases
from app.tasks import store as tasks
from app.tasks.submission import submitted
from app.tasks.views import Accepted
from app.web.access import Access

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


_PRIORITY = -100  # behind what people wait for
_REASON = "an expert, of tasks that are done again and only read"


class ExpertTasksRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`failed` tasks have no success, by their score or as they could not be done; `unscored` ones were completed.
    The newest ones are taken, at most `limit`."""

    tasks: Wanted
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 20


class ExpertTasks(msgspec.Struct, frozen=True, kw_only=True):
    """`release` is the number of the candidate that does them; null if there are none."""

    release: int | None
    tasks: list[Accepted]


async def do_again(
    session: AsyncSession,
    access: Access,
    owner: tables.Project,
    name: str,
    data: ExpertTasksRequest,
    limits: Limits,
) -> ExpertTasks:
    """Queue them, pinned to a candidate with the model. Audited; commits. Raises NotFoundError, LimitError.

    A task may have failed with a change half made, so that nothing is changed once more: they only read.
    """
    model = await hosted_models.get(session, owner.id, name, lock=True)  # two requests take no task twice
    found = await latest(session, owner.id, model.id, data.tasks, data.limit)
    if not found:
        return ExpertTasks(release=None, tasks=[])
    release = await hosted_models.propose(session, owner.id, name)
    await releases.record_evidence(session, release.id, {"reason": _REASON})
    queued = await tasks.submit_all(session, [(owner.id, _again(each, release, access)) for each in found], limits)
    detail = {"model": name, "reason": _REASON, "tasks": len(queued)}
    await audit.add(session, owner.id, release.id, access.actor, AuditAction.RELEASE_PROPOSED, detail)
    await session.commit()
    return ExpertTasks(release=release.number, tasks=[Accepted.of(each) for each in queued])


def _again(task: tables.Task, release: tables.Release, access: Access) -> tasks.NewTask:
    return tasks.NewTask(
        **(submitted(task) | {"priority": _PRIORITY}),
        key_id=access.key_id,
        rerun_of=task.id,
        reads_only=True,
        release_id=release.id,
        pinned=True,
    )
