"""Training runs in the database. A process holds a run by a lease, and writes to it only while it does."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Update, and_, case, delete, exists, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.db import models
from app.db.clock import from_now
from app.db.models import RUN_MOVES, RunState
from app.db.page import Page, read_page
from app.errors import ConflictError, NotFoundError
from app.records import Json
from app.run_settings import RunKind, RunSettings

CHANNEL = "sage_runs"  # NOTIFY: a run has news; its id is the payload

WAITS: dict[str, Any] = {
    "owner": None,
    "lease_until": None,
    "rings": 0,
    "rung_at": None,
}  # whoever stands in the queue

_run = models.TrainingRun


async def create(
    session: AsyncSession, project_id: UUID, settings: RunSettings, *, schedule_id: UUID | None = None
) -> models.TrainingRun:
    """Put a run at the end of the queue. Once it is committed, ring for it (`app.queue.ring`)."""
    return await put(session, project_id, msgspec.to_builtins(settings), schedule_id=schedule_id)


async def put(
    session: AsyncSession, project_id: UUID, settings: dict[str, Json], *, schedule_id: UUID | None = None
) -> models.TrainingRun:
    """As `create`, with settings as they are stored. Should they fit no longer, the run fails and says so."""
    row = {"project_id": project_id, "schedule_id": schedule_id, "settings": settings}
    run: models.TrainingRun | None = await session.scalar(
        insert(_run).values(kind=RunKind(settings["kind"]), **row).returning(_run)
    )
    assert run is not None  # an insert returns its row
    await tell(session, run.id)
    return run


async def get(session: AsyncSession, run_id: UUID, project_id: UUID | None = None) -> models.TrainingRun:
    """Raises NotFoundError also for a run of another project than the one given."""
    run = await session.get(_run, run_id, populate_existing=True)
    if run is None or project_id not in (None, run.project_id):
        raise NotFoundError(f"no training run has the id {run_id}")
    return run


async def page(
    session: AsyncSession,
    project_id: UUID,
    *,
    state: RunState | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[models.TrainingRun]:
    """Newest first. Raises InvalidError for a cursor that is none of ours."""
    query = select(_run).where(_run.project_id == project_id)
    if state is not None:
        query = query.where(_run.state == state)
    return await read_page(session, query, _run, cursor, limit)


async def steps(
    session: AsyncSession, run_id: UUID, after: int = 0, limit: int = 1000
) -> Sequence[models.RunStep]:
    """In order, those that follow `after`."""
    query = (
        select(models.RunStep)
        .where(models.RunStep.run_id == run_id, models.RunStep.index > after)
        .order_by(models.RunStep.index)
        .limit(limit)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(query)).all()


async def request_cancel(session: AsyncSession, run_id: UUID) -> models.TrainingRun:
    """One that waits is cancelled at once, one that runs is flagged for its process; again is no mistake.

    Raises NotFoundError, and ConflictError if the run has ended otherwise.
    """
    waits = _run.state == RunState.QUEUED
    run = await _change(
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
            raise ConflictError(f"run {run_id} is {run.state} already: there is nothing to cancel")
    return run


async def retry(session: AsyncSession, run_id: UUID) -> models.TrainingRun:
    """Back into the queue, with all its attempts; it goes on from its checkpoint. Ring for it after the commit.

    Raises NotFoundError, and ConflictError for a run that neither failed nor was cancelled.
    """
    untried = {"attempt": 0, "losses": 0, "lost_at": 0}
    again = {"cancel_requested": False, "failure": None, "result": None, "finished_at": None, **untried}
    run = await _change(
        session,
        update(_run)
        .where(_run.id == run_id, _run.state.in_([RunState.FAILED, RunState.CANCELLED]))
        .values(state=RunState.QUEUED, **again, **WAITS),
    )
    if run is None:
        state = (await get(session, run_id)).state
        raise ConflictError(f"run {run_id} is {state}: only one that failed or was cancelled can be retried")
    return run


async def claim(
    session: AsyncSession, owner: str, lease_seconds: float, run_id: UUID | None = None
) -> models.TrainingRun | None:
    """The oldest run that waits, or the one named; None where it does not wait, or its project trains already.

    Two processes never get the same one, nor two of the same project.
    """
    other = aliased(_run)
    training = exists().where(other.project_id == _run.project_id, other.state == RunState.RUNNING)
    waiting = select(_run.id).where(_run.state == RunState.QUEUED, ~training)
    if run_id is not None:
        waiting = waiting.where(_run.id == run_id)
    oldest = waiting.order_by(_run.created_at, _run.id).with_for_update(skip_locked=True).limit(1)
    try:
        async with session.begin_nested():
            return await _change(
                session,
                update(_run)
                .where(_run.id == oldest.scalar_subquery())
                .values(
                    state=RunState.RUNNING,
                    owner=owner,
                    lease_until=from_now(lease_seconds),
                    attempt=_run.attempt + 1,
                    started_at=func.coalesce(_run.started_at, func.clock_timestamp()),
                ),
            )
    except IntegrityError:  # another of the project began at the same moment
        return None


async def extend(session: AsyncSession, run_id: UUID, owner: str, lease_seconds: float) -> bool:
    """Renew the lease: is the run to be cancelled? ConflictError: it is no longer the owner's."""
    cancelled = await session.scalar(
        update(_run)
        .where(_held(run_id, owner))
        .values(lease_until=from_now(lease_seconds))
        .returning(_run.cancel_requested)
    )
    return _surely_held(cancelled, run_id, owner)


async def hold(session: AsyncSession, run_id: UUID, owner: str) -> bool:
    """Nobody else can take the run up before this transaction ends. Answers and raises as `extend`."""
    query = select(_run.cancel_requested).where(_held(run_id, owner)).with_for_update(read=True)
    return _surely_held(await session.scalar(query), run_id, owner)


async def append_step(
    session: AsyncSession, run_id: UUID, owner: str, index: int, metrics: dict[str, Json], *, total: int = 0
) -> bool:
    """What a step measured: is the run to be cancelled? Later ones, of an attempt that was lost, go.

    ConflictError: the run is no longer the owner's, and nothing is written.
    """
    cancelled = await session.scalar(
        update(_run)
        .where(_held(run_id, owner))
        .values(step=index, steps=total or _run.steps)
        .returning(_run.cancel_requested)
    )
    _surely_held(cancelled, run_id, owner)
    step, row = models.RunStep, {"metrics": metrics, "created_at": func.clock_timestamp()}
    await session.execute(delete(step).where(step.run_id == run_id, step.index > index))
    await session.execute(
        upsert(step)
        .values(run_id=run_id, index=index, **row)
        .on_conflict_do_update(index_elements=["run_id", "index"], set_=row)
    )
    await tell(session, run_id)
    return _surely_held(cancelled, run_id, owner)


async def finish(
    session: AsyncSession,
    run_id: UUID,
    owner: str,
    state: RunState,
    *,
    failure: str | None = None,
    result: dict[str, Json] | None = None,
) -> bool:
    """False, and nothing is written: the run is no longer the owner's."""
    if state not in RUN_MOVES[RunState.RUNNING] - {RunState.QUEUED}:
        raise ValueError(f"a run cannot end as {state}")
    ended = {"state": state, "failure": failure, "result": result, "finished_at": func.clock_timestamp()}
    changes = update(_run).where(_held(run_id, owner)).values(owner=None, lease_until=None, **ended)
    return await _change(session, changes) is not None


async def hand_back(session: AsyncSession, run_id: UUID, owner: str) -> bool:
    """Its process is asked to stop: another goes on at once, and the attempt does not count."""
    fate = case((_run.cancel_requested, RunState.CANCELLED), else_=RunState.QUEUED)
    ended = case((_run.cancel_requested, func.clock_timestamp()), else_=None)
    changes = update(_run).where(_held(run_id, owner))
    changes = changes.values(state=fate, finished_at=ended, attempt=_run.attempt - 1, **WAITS)
    return await _change(session, changes) is not None


def _held(run_id: UUID, owner: str) -> ColumnElement[bool]:
    return and_(_run.id == run_id, _run.owner == owner, _run.state == RunState.RUNNING)


def _surely_held(cancelled: bool | None, run_id: UUID, owner: str) -> bool:
    if cancelled is None:
        raise ConflictError(f"run {run_id} is no longer held by {owner}: drop it")
    return cancelled


async def _change(session: AsyncSession, changes: Update) -> models.TrainingRun | None:
    """The run as it is now, or None where nothing fits; who follows it is told."""
    run = await session.scalar(changes.returning(_run).execution_options(populate_existing=True))
    if run is not None:
        await tell(session, run.id)
    return run


async def tell(session: AsyncSession, run_id: UUID) -> None:
    """Who follows the run looks again, once this is committed."""
    await session.execute(select(func.pg_notify(CHANNEL, str(run_id))))
