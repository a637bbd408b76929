"""Deletes tasks: what a project keeps for a limited time, in small batches, and what is to be erased.

Whatever a run, a canary, a watch or a shadow still needs stays for now. Erasing names what was learned from a
task.
"""

import asyncio
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import CursorResult, Delete, Select, and_, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import trials
from app.base.errors import ConflictError
from app.base.loop import Loop, Looping
from app.base.run_settings import RunKind
from app.base.telemetry import RETENTION_DELETED, RETENTION_HELD
from app.db import tables
from app.db.database import TRANSIENT, Sessions
from app.db.queries import in_array
from app.db.results import proven
from app.db.tables import OPEN_RUNS, TASK_END_STATES, AuditAction, ReleaseState, RetentionKind, SkillState
from app.projects import audit
from app.projects.settings import ProjectSettings
from app.releases import store as releases
from app.releases import trials_store
from app.releases.store import LearnedRelease, LearningRun

log = structlog.get_logger(__name__)

_SECONDS = 600.0
_TASKS = 200  # per transaction
_LOCK = func.pg_try_advisory_xact_lock(func.hashtextextended("retention", 0))
_LEARNING = [RunKind.LOGGED, RunKind.SFT]
_INSTANT = timedelta(microseconds=1)

_RETRAIN = (
    "No later run learns from the erased tasks, but weights and skills remember them. To replace the weights, "
    'queue a run with start="base" (POST /v1/training-runs), promote its release, and roll back to none of those '
    "named here. To forget the skills, delete them (DELETE /v1/skills/{id})."
)

_task, _mark, _run, _skill = tables.Task, tables.RetentionMark, tables.TrainingRun, tables.Skill


class RetentionWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one kind that are due, by the end of their tasks."""

    project_id: UUID
    project: str
    kind: RetentionKind
    until: datetime  # inclusive
    needed_by: str = ""  # why later ones, although due, stay for now


class Deletion(msgspec.Struct, frozen=True):
    """One batch."""

    rows: int
    more: bool


class RetentionLoop(Looping):
    """Works while it is entered. Each batch is a transaction, and rests as long as it took."""

    def __init__(self, sessions: Sessions, every: float = _SECONDS, batch: int = _TASKS) -> None:
        self._sessions = sessions
        self._batch = batch
        self._loop = Loop("delete what is no longer kept", self.delete_due, every, expected=TRANSIENT)

    async def delete_due(self) -> None:
        """Delete everything that is due now."""
        async with self._sessions() as session:
            found_windows = await windows(session)
        held = Counter(window.kind for window in found_windows if window.needed_by)
        for kind in RetentionKind:
            RETENTION_HELD.labels(kind.value).set(held[kind])
        for window in found_windows:
            await self._delete(window)

    async def _delete(self, window: RetentionWindow) -> None:
        rows, more = 0, True
        while more:
            began = time.monotonic()
            async with self._sessions.begin() as session:
                batch = await delete_some(session, window, self._batch)
            if batch is None:
                return
            more, rows = batch.more, rows + batch.rows
            RETENTION_DELETED.labels(window.kind.value).inc(batch.rows)
            await asyncio.sleep((time.monotonic() - began) if more else 0)
        if rows or window.needed_by:
            until, needed_by = window.until.isoformat(), window.needed_by or None
            about = {"project": window.project, "kind": window.kind.value, "until": until, "needed_by": needed_by}
            log.info("deleted what is no longer kept", rows=rows, **about)


async def windows(session: AsyncSession) -> list[RetentionWindow]:
    """Everything that is due now, in all projects."""
    project = tables.Project
    limited = or_(*(project.settings.has_key(f"keep_{kind.value}") for kind in RetentionKind))
    rows = await session.execute(
        select(project.id, project.name, project.settings, func.clock_timestamp().label("now")).where(limited)
    )
    return [
        await _window(session, row.id, row.name, kind, row.now - timedelta(days=days))
        for row in rows.all()
        for kind in RetentionKind
        if (days := getattr(msgspec.convert(row.settings, ProjectSettings), f"keep_{kind.value}")) is not None
    ]


async def delete_some(session: AsyncSession, window: RetentionWindow, tasks: int) -> Deletion | None:
    """Delete what is due of about so many tasks, oldest first. None if another process is deleting.

    The transaction also records how far it came, so that no later batch looks at these tasks again.
    """
    if not await session.scalar(select(_LOCK)):
        return None
    after = await session.scalar(
        select(_mark.until).where(_mark.project_id == window.project_id, _mark.kind == window.kind)
    )
    ended = and_(_task.project_id == window.project_id, _task.finished_at <= window.until)
    if after is not None:
        ended = and_(ended, _task.finished_at > after)
    last = await session.scalar(
        select(_task.finished_at).where(ended).order_by(_task.finished_at).offset(tasks - 1).limit(1)
    )
    until = window.until if last is None else last
    rows = await _delete(session, window, select(_task.id).where(ended, _task.finished_at <= until))
    mark = insert(_mark).values(project_id=window.project_id, kind=window.kind, until=until)
    further = {"until": func.greatest(_mark.until, mark.excluded.until)}
    await session.execute(mark.on_conflict_do_update(index_elements=["project_id", "kind"], set_=further))
    return Deletion(rows, more=last is not None)


async def delete_tasks(session: AsyncSession, project_id: UUID, which: Select[UUID]) -> int:
    """Delete tasks with all that belongs to them. Returns their number."""
    deleted = delete(_task).where(_task.id.in_(which)).returning(proven())
    scores = (await session.scalars(deleted.execution_options(synchronize_session=False))).all()
    schedule, scored = tables.Schedule, sum(score is not None for score in scores)
    if scored:  # the schedule waits for a number of scored tasks, and would wait for these again
        fewer = func.greatest(schedule.scored_seen - scored, 0)
        await session.execute(
            update(schedule)
            .where(schedule.project_id == project_id)
            .values(scored_seen=fewer, rev=schedule.rev + 1)
        )
    return len(scores)


class WrittenSkill(msgspec.Struct, frozen=True):
    """A skill that an erased task wrote. It stays until it is deleted."""

    id: UUID
    name: str
    version: int
    state: SkillState


_Named = TypeVar("_Named", bound=WrittenSkill | LearningRun | LearnedRelease)


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, and what remembers it."""

    tasks: int = 0
    skills: list[WrittenSkill] = []
    runs: list[LearningRun] = []
    releases: list[LearnedRelease] = []
    retrain: str = ""  #: how to forget it; "" if nothing remembers it

    def __add__(self, other: "Erasure") -> "Erasure":
        return Erasure(
            tasks=self.tasks + other.tasks,
            skills=_joined(self.skills, other.skills),
            runs=_joined(self.runs, other.runs),
            releases=_joined(self.releases, other.releases),
            retrain=self.retrain or other.retrain,
        )


def of_task(task_id: UUID) -> Select[UUID]:
    """One task, for the functions below."""
    return select(_task.id).where(_task.id == task_id)


def of_principal(project_id: UUID, principal: str, until: datetime) -> Select[UUID]:
    """A person's tasks that were submitted up to a time, for the functions below."""
    own = _task.project_id == project_id, _task.principal == principal
    return select(_task.id).where(*own, _task.created_at <= until)


async def check_erasable(session: AsyncSession, which: Select[UUID]) -> None:
    """Raises ConflictError if a task has not ended, or is learned from by a run that has not."""
    open_tasks = which.where(_task.state.not_in(TASK_END_STATES)).subquery()
    unfinished = await session.scalar(select(func.count()).select_from(open_tasks))
    if unfinished:
        raise ConflictError(
            f"tasks that have not ended: {unfinished}; cancel them first (POST /v1/tasks/{{id}}/cancel), then "
            "try again"
        )
    learned = select(tables.RunTask.run_id).where(tables.RunTask.task_id.in_(which))
    run_id = await session.scalar(
        select(_run.id).where(_run.id.in_(learned), _run.state.in_(OPEN_RUNS)).order_by(_run.id).limit(1)
    )
    if run_id is not None:
        raise ConflictError(
            f"training run {run_id} is learning from it: cancel the run, or wait until it has ended, then "
            "try again"
        )


async def erase_some(
    session: AsyncSession, project_id: UUID, which: Select[UUID], actor: str, at_once: int
) -> Erasure:
    """Delete so many of the tasks with all that belongs to them, and audit it, without any of their content.

    No task is left once this erases none. Raises ConflictError as `check_erasable`.
    """
    # A run records the tasks before it learns from them: it has done so by now, or will find that they are gone.
    ids = (await session.scalars(which.order_by(_task.id).limit(at_once).with_for_update())).all()
    if not ids:
        return Erasure()
    these = select(_task.id).where(in_array(_task.id, ids))
    await check_erasable(session, these)
    traces = await releases.traces(session, project_id, these)
    written = select(_skill.id, _skill.name, _skill.version, _skill.state).where(in_array(_skill.task_id, ids))
    skills = [WrittenSkill(*row) for row in await session.execute(written.order_by(_skill.rev))]
    read = update(_run).where(in_array(_run.id, traces.readers), _run.state.not_in(OPEN_RUNS))
    await session.execute(read.values(erased=True))
    remembered = bool(skills or traces.runs)
    detail = {
        "tasks": len(ids),
        "skills": [str(each.id) for each in skills],
        "runs": [str(each.id) for each in traces.runs],
        "releases": [each.number for each in traces.releases],
    }
    await audit.add(session, project_id, None, actor, AuditAction.TASKS_ERASED, msgspec.to_builtins(detail))
    return Erasure(
        tasks=await delete_tasks(session, project_id, these),
        skills=skills,
        runs=traces.runs,
        releases=traces.releases,
        retrain=_RETRAIN if remembered else "",
    )


def _joined(some: list[_Named], others: list[_Named]) -> list[_Named]:
    """Each once."""
    known = {each.id for each in some}
    return some + [each for each in others if each.id not in known]


async def _delete(session: AsyncSession, window: RetentionWindow, which: Select[UUID]) -> int:
    event, trajectory, shadow = tables.TaskEvent, tables.Trajectory, tables.Shadow
    if window.kind is RetentionKind.EVENTS:  # a follower of the events waits for `done`
        return await _count(session, delete(event).where(event.task_id.in_(which), event.kind != "done"))
    await trials.forget(session, window.project_id, window.until)
    await _mark_readers(session, which)
    if window.kind is RetentionKind.TASKS:
        return await delete_tasks(session, window.project_id, which)
    await session.execute(delete(shadow).where(shadow.task_id.in_(which), shadow.recorded))
    for journal in (tables.TaskTurn, tables.TaskCall):  # of tasks with a call in doubt
        await session.execute(delete(journal).where(journal.task_id.in_(which)))
    return await _count(session, delete(trajectory).where(trajectory.task_id.in_(which)))


async def _mark_readers(session: AsyncSession, which: Select[UUID]) -> None:
    """Have the copies of the tasks deleted that runs keep: at once, or when a run that goes on has ended."""
    await session.execute(which.order_by(_task.id).with_for_update())  # runs that record them have done so by now
    run, read = tables.TrainingRun, tables.RunTask
    readers = select(read.run_id).where(read.task_id.in_(which))
    marked = update(run).where(run.id.in_(readers), ~run.erased).values(erased=True)
    await session.execute(marked.execution_options(synchronize_session=False))


async def _count(session: AsyncSession, statement: Delete) -> int:
    result = await session.execute(statement.execution_options(synchronize_session=False))
    assert isinstance(result, CursorResult)
    return result.rowcount


async def _window(
    session: AsyncSession, project_id: UUID, project: str, kind: RetentionKind, until: datetime
) -> RetentionWindow:
    needed_by = ""
    if kind is not RetentionKind.EVENTS:
        for name, first in (await _needed_since(session, project_id, until)).items():
            if first <= until:
                until, needed_by = first - _INSTANT, name
    return RetentionWindow(project_id=project_id, project=project, kind=kind, until=until, needed_by=needed_by)


async def _needed_since(session: AsyncSession, project_id: UUID, until: datetime) -> dict[str, datetime]:
    """The end of the first task that is still needed, by what needs it."""
    shadow, release = tables.Shadow, tables.Release
    first = select(func.min(_task.finished_at)).where(_task.project_id == project_id, _task.finished_at <= until)
    replayed = select(shadow.task_id).where(shadow.finished_at.is_(None))
    canary = release.project_id == project_id, release.state == ReleaseState.CANARY
    watched = release.project_id == project_id, release.watched_against.is_not(None)
    promoted = await session.scalar(select(release.watched_since).where(*watched))
    since = {
        "a run": await _read_by_runs(session, project_id, first),
        "a shadow": await session.scalar(first.where(_task.id.in_(replayed))),
        "a canary": await session.scalar(select(release.canary_at).where(*canary)),
        "a watch": None if promoted is None else promoted - trials_store.WINDOW,
    }
    return {name: each for name, each in since.items() if each is not None}


async def _read_by_runs(
    session: AsyncSession, project_id: UUID, first: Select[datetime | None]
) -> datetime | None:
    """For the runs on served tasks that have not ended, and have not read their tasks yet."""
    run = tables.TrainingRun
    is_open = run.state.in_(OPEN_RUNS)
    without_data = func.coalesce(run.settings["data"].astext, "") == ""
    reads = run.kind.in_(_LEARNING), without_data, run.started_from.is_(None)
    query = select(run.settings["since"].astext).where(run.project_id == project_id, is_open, *reads)
    starts = (await session.scalars(query)).all()
    known = [msgspec.convert(each, datetime, strict=False) for each in starts if each is not None]
    if not starts:
        return None
    if len(known) == len(starts):
        first = first.where(_task.finished_at >= min(known))
    return await session.scalar(first)
