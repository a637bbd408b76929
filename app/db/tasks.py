"""Tasks, as their submitters see them. Runners use `task_queue`."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import msgspec
from sqlalchemy import case, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import events, models, task_end, usage
from app.db.models import TaskState
from app.db.page import Page, read_page
from app.db.quotas import admit
from app.errors import ConflictError, NotFoundError
from app.project.project_settings import Limits
from app.project.score_source import ScoreSource
from app.records import Stop

CHANNEL = "sage_tasks"  # NOTIFY: tasks may be claimed


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """A submission. The same idempotency key means the same task; the digest detects a different one."""

    instruction: str
    principal: str = ""
    priority: int = 0
    scenario: str | None = None
    variables: dict[str, str] = {}
    use_skills: bool = True
    check_code: str | None = None
    idempotency_key: str | None = None
    request_digest: str | None = None


_CONFLICT = 0.5  # between two scores of a task


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a listing; None matches everything."""

    project_id: UUID | None = None
    state: TaskState | None = None
    stop: Stop | None = None
    scenario: str | None = None
    created_after: datetime | None = None  # inclusive
    created_before: datetime | None = None  # exclusive
    min_score: float | None = None
    overruled: bool = (
        False  # only those which another source called a success and a person a failure, or the reverse
    )


async def submit(session: AsyncSession, project_id: UUID, new: NewTask) -> models.Task:
    """Queue a task. Runners are notified when the transaction commits.

    A known key with the same digest returns the existing task. Raises ConflictError for one with another digest.
    """
    [task] = await submit_all(session, [(project_id, new)])
    return task


async def submit_all(
    session: AsyncSession,
    batch: Sequence[tuple[UUID, NewTask]],
    limits: Limits = Limits(),  # noqa: B008  frozen
) -> list[models.Task]:
    """Queue several tasks in order, with one notification. `limits` are the server's.

    Raises LimitError if a project has reached one of its limits; then roll back.
    """
    rows = [
        {
            "id": uuid4(),
            "project_id": project_id,
            "created_at": func.clock_timestamp() + timedelta(microseconds=place),  # distinct, to keep the order
            **msgspec.structs.asdict(new),
        }
        for place, (project_id, new) in enumerate(batch)
    ]
    stored = await session.scalars(
        insert(models.Task)
        .values(rows)
        .on_conflict_do_nothing(index_elements=["project_id", "idempotency_key"])
        .returning(models.Task)
    )
    fresh = {task.id: task for task in stored}
    if fresh:
        await admit(session, Counter(task.project_id for task in fresh.values()), limits)
        await session.execute(select(func.pg_notify(CHANNEL, "")))
    return [
        fresh.get(row["id"]) or await _first(session, project_id, new)
        for row, (project_id, new) in zip(rows, batch, strict=True)
    ]


async def get(session: AsyncSession, task_id: UUID, project_id: UUID | None = None) -> models.Task:
    """Raises NotFoundError also for a task of another project than the one given."""
    task = await session.get(models.Task, task_id, populate_existing=True)
    if task is None or project_id not in (None, task.project_id):
        raise NotFoundError(f"no task has the id {task_id}")
    return task


async def page(
    session: AsyncSession, only: TaskFilter, *, cursor: str | None = None, limit: int = 50
) -> Page[models.Task]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    task = models.Task
    query = select(task)
    for column, value in (
        (task.project_id, only.project_id),
        (task.state, only.state),
        (task.stop, only.stop),
        (task.scenario, only.scenario),
    ):
        if value is not None:
            query = query.where(column == value)
    if only.created_after is not None:
        query = query.where(task.created_at >= only.created_after)
    if only.created_before is not None:
        query = query.where(task.created_at < only.created_before)
    if only.min_score is not None:
        query = query.where(task.score >= only.min_score)
    if only.overruled:
        differs = func.abs(task.overruled_score - task.score) >= _CONFLICT
        query = query.where(task.overruled_score.is_not(None), differs)
        query = query.where(task.score_source == ScoreSource.PERSON)
    return await read_page(session, query, task, cursor, limit)


async def request_cancel(session: AsyncSession, task_id: UUID) -> models.Task:
    """Cancel a task that no runner has at once; flag another for its runner. Idempotent.

    Raises NotFoundError, and ConflictError if the task has ended otherwise.
    """
    waits = models.Task.owner.is_(None)
    open_states = [TaskState.ACCEPTED, TaskState.RUNNING, TaskState.WAITING]
    task = await session.scalar(
        update(models.Task)
        .where(models.Task.id == task_id, models.Task.state.in_(open_states))
        .values(
            cancel_requested=True,
            state=case((waits, TaskState.CANCELLED), else_=models.Task.state),
            stop=case((waits, Stop.CANCELLED), else_=models.Task.stop),
            finished_at=case((waits, func.clock_timestamp()), else_=models.Task.finished_at),
        )
        .returning(models.Task)
        .execution_options(populate_existing=True)
    )
    if task is None:
        task = await get(session, task_id)
        if task.state != TaskState.CANCELLED:
            raise ConflictError(f"task {task_id} is already {task.state}: it cannot be cancelled")
    elif task.state == TaskState.CANCELLED:
        used = await events.used(session, task_id)
        await usage.add(session, task.project_id, usage.SUBMISSIONS, cancelled=1, **used)
        await task_end.clean_up(session, task_id)
    return task


async def _first(session: AsyncSession, project_id: UUID, new: NewTask) -> models.Task:
    task = await session.scalar(
        select(models.Task).where(
            models.Task.project_id == project_id, models.Task.idempotency_key == new.idempotency_key
        )
    )
    if task is None or task.request_digest != new.request_digest:
        raise ConflictError(
            f"the idempotency key {new.idempotency_key!r} was used for another request: choose a new one"
        )
    return task
