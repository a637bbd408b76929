"""The queue of training runs. A process holds a run by a lease, and writes to it only while it is the owner.

`requeue_expired` recovers what a dead process held; any number of processes may call it.
"""

from uuid import UUID

import msgspec
from sqlalchemy import Update, and_, case, delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.base.values import Json, RunPart
from app.db import lease, tables
from app.db.runs import notify, write
from app.db.tables import RUN_MOVES, RunState

MAX_LOSSES = 3  # processes that a run may lose without progress
_LOST = (
    f"RunLostError: the process of this run was lost {MAX_LOSSES} times (killed, or the machine stopped) without "
    "progress in between: read the end of its log on the worker, give it a smaller batch or more memory, "
    "then retry the run"
)

_run = tables.TrainingRun
_queue = lease.LeaseQueue(_run, _run.state.in_([RunState.QUEUED, RunState.RUNNING]))


async def claim(
    session: AsyncSession, owner: str, lease_seconds: float, run_id: UUID | None = None
) -> tables.TrainingRun | None:
    """The oldest queued run, or the one given; None if it is not queued, or its project has a running one.

    Two processes never get the same run, nor two of the same project.
    """
    other = aliased(_run)
    training = exists().where(other.project_id == _run.project_id, other.state == RunState.RUNNING)
    which = [_run.state == RunState.QUEUED, ~training]
    if run_id is not None:
        which.append(_run.id == run_id)
    started_at = func.coalesce(_run.started_at, func.clock_timestamp())
    now = {"state": RunState.RUNNING, "started_at": started_at, "part": None}
    claimed = _queue.claim(owner, lease_seconds, *which, **now)
    try:
        async with session.begin_nested():
            return await write(session, claimed)
    except IntegrityError:  # another run of the project was claimed at the same moment
        return None


async def extend(
    session: AsyncSession, run_id: UUID, owner: str, lease_seconds: float, *, part: RunPart | None = None
) -> bool:
    """Renew the lease, and store how much is done, if that is new.

    Returns whether cancellation was requested. Raises ConflictError if the owner lost the run.
    """
    renewed = _queue.extend(owner, lease_seconds, _run.id == run_id)
    if part is not None:
        renewed = renewed.values(part=msgspec.to_builtins(part))
        await notify(session, run_id)
    return await _write_held(session, run_id, owner, renewed)


async def hold(session: AsyncSession, run_id: UUID, owner: str) -> bool:
    """Keep others from claiming the run until this transaction ends. Returns and raises as `extend`."""
    held = select(_run.cancel_requested).where(_queue.held(owner, _run.id == run_id)).with_for_update(read=True)
    return _surely_held(await session.scalar(held), run_id, owner)


async def append_step(
    session: AsyncSession, run_id: UUID, owner: str, index: int, metrics: dict[str, Json], *, total: int = 0
) -> bool:
    """Store a step's metrics and delete later steps, which a lost attempt left. Returns and raises as `extend`."""
    progress = update(_run).where(_queue.held(owner, _run.id == run_id))
    cancelled = await _write_held(session, run_id, owner, progress.values(step=index, steps=total or _run.steps))
    step, row = tables.RunStep, {"metrics": metrics, "created_at": func.clock_timestamp()}
    await session.execute(delete(step).where(step.run_id == run_id, step.index > index))
    await session.execute(
        insert(step)
        .values(run_id=run_id, index=index, **row)
        .on_conflict_do_update(index_elements=["run_id", "index"], set_=row)
    )
    await notify(session, run_id)
    return cancelled


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
    end = {"state": state, "failure": failure, "result": result, "part": None}
    finished = _queue.finish(owner, _run.id == run_id, **end)
    return await write(session, finished) is not None


async def hand_back(session: AsyncSession, run_id: UUID, owner: str) -> bool:
    """Requeue a run whose process was asked to stop; the attempt does not count."""
    state = case((_run.cancel_requested, RunState.CANCELLED), else_=RunState.QUEUED)
    finished_at = case((_run.cancel_requested, func.clock_timestamp()), else_=None)
    changes = {"state": state, "finished_at": finished_at, "attempt": _run.attempt - 1, "part": None}
    return await write(session, _queue.hand_back(owner, _run.id == run_id, **changes)) is not None


async def requeue_expired(session: AsyncSession) -> list[UUID]:
    """Requeue runs whose lease has expired; returns their ids. One that was lost too often fails instead.

    Steps repeated after a loss do not count as progress; otherwise a step that kills its process would be
    repeated indefinitely.
    """
    losses = case((_run.step > _run.lost_at, 1), else_=_run.losses + 1)
    too_often = and_(~_run.cancel_requested, losses >= MAX_LOSSES)
    state = case((_run.cancel_requested, RunState.CANCELLED), (too_often, RunState.FAILED), else_=RunState.QUEUED)
    expired = _queue.requeue_expired(
        state=state,
        part=None,
        losses=losses,
        lost_at=func.greatest(_run.lost_at, _run.step),
        failure=case((too_often, _LOST), else_=None),
        finished_at=case((_run.cancel_requested | too_often, func.clock_timestamp()), else_=None),
    )
    rows = (await session.execute(expired.returning(_run.id, _run.state))).all()
    for row in rows:
        await notify(session, row.id)
    return [row.id for row in rows if row.state == RunState.QUEUED]


async def expire(session: AsyncSession, run_id: UUID, owner: str) -> None:
    """End the lease of a process that is known to be dead."""
    await session.execute(_queue.extend(owner, 0, _run.id == run_id))


async def startable(session: AsyncSession) -> list[UUID]:
    """The oldest queued run of each project that has none running."""
    other = aliased(_run)
    running = exists().where(other.project_id == _run.project_id, other.state == RunState.RUNNING)
    oldest = (
        select(_run.id)
        .ext(distinct_on(_run.project_id))
        .where(_run.state == RunState.QUEUED, ~running)
        .order_by(_run.project_id, _run.created_at, _run.id)
    )
    return list(await session.scalars(oldest))


async def _write_held(session: AsyncSession, run_id: UUID, owner: str, changes: Update) -> bool:
    return _surely_held(await session.scalar(changes.returning(_run.cancel_requested)), run_id, owner)


def _surely_held(cancelled: bool | None, run_id: UUID, owner: str) -> bool:
    if cancelled is None:
        raise lease.lost("run", run_id, owner)
    return cancelled
