"""What training runs learned from served tasks: recorded before they do, and found again by task."""

from collections.abc import Collection
from uuid import UUID

import msgspec
from sqlalchemy import Select, and_, case, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.queries import in_array
from app.db.tables import ReleaseState, RunState
from app.projects.settings import kind_of
from app.run_settings import RunKind

OPEN_RUNS = (RunState.QUEUED, RunState.RUNNING)

_task, _run, _release, _learned = tables.Task, tables.TrainingRun, tables.Release, tables.RunTask


class LearningRun(msgspec.Struct, frozen=True):
    """A training run that learned from a task, or continued an adapter that did."""

    id: UUID
    state: RunState
    recorded: bool  #: False: an earlier version executed it, which recorded no tasks; it may have


class LearnedRelease(msgspec.Struct, frozen=True):
    """A release with the weights of such a run."""

    id: UUID
    number: int
    state: ReleaseState
    model: str  #: the adapter's hash
    run_id: UUID | None


class Traces(msgspec.Struct, frozen=True):
    """What remembers some tasks."""

    runs: list[LearningRun]  # oldest first
    releases: list[LearnedRelease]
    readers: set[UUID]  # the runs that read the tasks themselves, and may keep a copy


async def record(
    session: AsyncSession,
    run_id: UUID,
    started_from: str,
    task_ids: Collection[UUID],
    learning_rate: float | None = None,
) -> bool:
    """Record the model that a run continues, at which rate, and the served tasks that it learns from. Safe to
    repeat.

    Until the transaction ends, the tasks cannot be erased. False, and nothing is recorded: some were erased since
    they were read.
    """
    there = select(_task.id).where(in_array(_task.id, task_ids)).with_for_update(read=True, key_share=True)
    found = (await session.scalars(there)).all()
    if len(found) < len(set(task_ids)):
        return False
    begun = {"started_from": started_from, "learning_rate": learning_rate}
    await session.execute(update(_run).where(_run.id == run_id).values(begun))
    rows = select(literal(run_id), _task.id).where(in_array(_task.id, found))
    await session.execute(insert(_learned).from_select(["run_id", "task_id"], rows).on_conflict_do_nothing())
    return True


async def served_kinds(session: AsyncSession, project_ids: Collection[UUID]) -> dict[UUID, set[str]]:
    """The kinds of tasks that releases learned from which have been active, by project: where they were placed, or
    see `kind_of`.
    """
    placed = tables.PlacedTask
    label = func.coalesce(_task.scenario, placed.kind)
    own_instruction = case((label.is_(None), _task.instruction))
    query = (
        select(_task.project_id, label, own_instruction)
        .join(_learned, _learned.task_id == _task.id)
        .outerjoin(placed, placed.task_id == _task.id)
        .join(_release, _release.training_run_id == _learned.run_id)
        .where(in_array(_release.project_id, project_ids), _release.activated_at.is_not(None))
        .distinct()
    )
    found: dict[UUID, set[str]] = {each: set() for each in project_ids}
    for project_id, known, instruction in await session.execute(query):
        found[project_id].add(kind_of(instruction or "", known))
    return found


async def traces(session: AsyncSession, project_id: UUID, tasks: Select[UUID]) -> Traces:
    """What learned from some tasks of a project."""
    recorded = set(await session.scalars(select(_learned.run_id).where(_learned.task_id.in_(tasks))))
    unrecorded = set(await session.scalars(_unrecorded(project_id, tasks)))
    known, possible = await _with_successors(session, recorded), await _with_successors(session, unrecorded)
    runs = select(_run.id, _run.state).where(in_array(_run.id, known | possible)).order_by(_run.created_at)
    columns = (_release.id, _release.number, _release.state, _release.model, _release.training_run_id)
    releases = select(*columns).where(in_array(_release.training_run_id, known | possible))
    return Traces(
        runs=[LearningRun(run_id, state, run_id in known) for run_id, state in await session.execute(runs)],
        releases=[LearnedRelease(*row) for row in await session.execute(releases.order_by(_release.number))],
        readers=recorded | unrecorded,
    )


def _unrecorded(project_id: UUID, tasks: Select[UUID]) -> Select[UUID]:
    """Runs of an earlier version that may have learned from one of the tasks, or continued an adapter that did."""
    first_end = select(func.min(_task.finished_at)).where(_task.id.in_(tasks)).scalar_subquery()
    imported = func.coalesce(_run.settings["data"].astext, "") != ""
    reads_tasks = or_(_run.kind == RunKind.LOGGED, and_(_run.kind == RunKind.SFT, ~imported))
    continues = func.coalesce(_run.settings["start"].astext, "active") == "active"
    return select(_run.id).where(
        _run.project_id == project_id,
        _run.kind != RunKind.EXAM,  # it learns nothing
        or_(reads_tasks, continues),
        _run.started_from.is_(None),
        _run.started_at > first_end,
        _run.step > 0,
    )


async def _with_successors(session: AsyncSession, runs: Collection[UUID]) -> set[UUID]:
    """The runs, and those that continued an adapter that one of them made."""
    found, new = set(runs), set(runs)
    while new:
        made = select(tables.Adapter.hash).where(in_array(tables.Adapter.run_id, new))
        proposed = select(_release.model).where(in_array(_release.training_run_id, new))
        later = select(_run.id).where(or_(_run.started_from.in_(made), _run.started_from.in_(proposed)))
        new = set(await session.scalars(later)) - found
        found |= new
    return found
