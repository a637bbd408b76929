"""Training runs, as their submitters see them. Processes claim them through `run_queue`."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import Update, case, func, insert, literal_column, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.values import Json
from app.db import notify as notifications
from app.db import tables
from app.db.queries import Page, read_page
from app.db.tables import RunState
from app.run_settings import RunKind, RunSettings

_run = tables.TrainingRun


async def create(
    session: AsyncSession, project_id: UUID, settings: RunSettings, *, schedule_id: UUID | None = None
) -> tables.TrainingRun:
    """Queue a run. Call `app.broker.celery_broker.notify_workers` after the commit."""
    return await put(session, project_id, msgspec.to_builtins(settings), schedule_id=schedule_id)


async def put(
    session: AsyncSession, project_id: UUID, settings: dict[str, Json], *, schedule_id: UUID | None = None
) -> tables.TrainingRun:
    """Queue a run like `create`, with settings as they are stored. The run fails if they are no longer valid."""
    row = {"project_id": project_id, "schedule_id": schedule_id, "settings": settings}
    run: tables.TrainingRun | None = await session.scalar(
        insert(_run).values(kind=RunKind(settings["kind"]), **row).returning(_run)
    )
    assert run is not None  # an insert returns its row
    await notify(session, run.id)
    return run


async def get(session: AsyncSession, run_id: UUID, project_id: UUID | None = None) -> tables.TrainingRun:
    """Raises NotFoundError also for a run of another project than the one given."""
    run = await session.get(_run, run_id, populate_existing=True)
    if run is None or project_id not in (None, run.project_id):
        raise NotFoundError(f"no training run has the id {run_id}; GET /v1/training-runs lists them")
    return run


async def page(
    session: AsyncSession,
    project_id: UUID,
    *,
    state: RunState | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[tables.TrainingRun]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_run).where(_run.project_id == project_id)
    if state is not None:
        query = query.where(_run.state == state)
    return await read_page(session, query, _run, cursor, limit)


async def latest_practice(session: AsyncSession, project_id: UUID, model: str) -> dict[str, Json] | None:
    """What the latest run of practice on a model did with its hours; None before the first."""
    practised = _run.result["data"]["practice"]
    found: dict[str, Json] | None = await session.scalar(
        select(practised)
        .where(
            _run.project_id == project_id,
            _run.kind == RunKind.PRACTICE,
            _run.state == RunState.DONE,
            practised["model"].astext == model,
        )
        .order_by(_run.finished_at.desc())
        .limit(1)
    )
    return found


async def steps(
    session: AsyncSession, run_id: UUID, after: int = 0, limit: int = 1000
) -> Sequence[tables.RunStep]:
    """Steps after number `after`, in order."""
    query = (
        select(tables.RunStep)
        .where(tables.RunStep.run_id == run_id, tables.RunStep.index > after)
        .order_by(tables.RunStep.index)
        .limit(limit)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(query)).all()


class OpenRuns(msgspec.Struct, frozen=True):
    """Of the runs that have not ended. A run whose number of steps is not known yet plans none."""

    queued: int
    running: int
    steps_done: int
    steps_planned: int


async def progress(session: AsyncSession) -> OpenRuns:
    """Of all projects together."""
    is_running = _run.state == literal_column("'running'")
    query = select(
        func.count().filter(~is_running),
        func.count().filter(is_running),
        func.coalesce(func.sum(_run.step).filter(is_running), 0),
        func.coalesce(func.sum(_run.steps).filter(is_running), 0),
    ).where(or_(is_running, _run.state == literal_column("'queued'")))
    return OpenRuns(*(int(value) for value in (await session.execute(query)).one()))


async def request_cancel(session: AsyncSession, run_id: UUID) -> tables.TrainingRun:
    """Cancel a queued run at once; flag a running one for its process. Idempotent.

    Raises NotFoundError, and ConflictError if the run has ended otherwise.
    """
    waits = _run.state == RunState.QUEUED
    run = await write(
        session,
        update(_run)
        .where(_run.id == run_id, _run.state.in_([RunState.QUEUED, RunState.RUNNING]))
        .values(
            cancel_requested=True,
            state=case((waits, RunState.CANCELLED), else_=_run.state),
            finished_at=case((waits, func.clock_timestamp()), else_=_run.finished_at),
        ),
    )
    if run is None:
        run = await get(session, run_id)
        if run.state != RunState.CANCELLED:
            raise ConflictError(f"run {run_id} is already {run.state}: it cannot be cancelled")
    return run


async def retry(session: AsyncSession, run_id: UUID) -> tables.TrainingRun:
    """Queue a run again, with all its attempts; it resumes from its checkpoint. Notify workers after the commit.

    Raises NotFoundError, and ConflictError for a run that neither failed nor was cancelled, or that learned from a
    task that is deleted.
    """
    untried = {"attempt": 0, "losses": 0, "lost_at": 0}
    again = {"cancel_requested": False, "failure": None, "result": None, "finished_at": None, **untried}
    run = await write(
        session,
        update(_run)
        .where(_run.id == run_id, _run.state.in_([RunState.FAILED, RunState.CANCELLED]), ~_run.erased)
        .values(state=RunState.QUEUED, **again),
    )
    if run is None:
        found = await get(session, run_id)
        if found.erased:
            raise ConflictError(
                f"run {run_id} learned from a task that is deleted: it cannot be retried, start a new one"
            )
        state = found.state
        raise ConflictError(f"run {run_id} is {state}: only one that failed or was cancelled can be retried")
    return run


async def write(session: AsyncSession, changes: Update) -> tables.TrainingRun | None:
    """Execute an update of one run and notify its followers. Returns the run, or None if no row matched."""
    run: tables.TrainingRun | None = await session.scalar(
        changes.returning(_run).execution_options(populate_existing=True)
    )
    if run is not None:
        await notify(session, run.id)
    return run


async def notify(session: AsyncSession, run_id: UUID) -> None:
    """Tell followers, once this is committed, that the run has changed."""
    await notifications.notify(session, notifications.RUNS, run_id)
