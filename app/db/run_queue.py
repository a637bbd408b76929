"""What keeps the queue of training runs moving, whatever dies. Any number of processes may do this at once."""

from uuid import UUID

from sqlalchemy import and_, case, exists, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.db import models, runs
from app.db.models import RunState
from app.db.runs import WAITS

MAX_LOSSES = 3  # processes that a run may lose without getting further
_LONGEST_PAUSE = 300.0  # seconds between two rings for a run
_LOST = (
    f"RunLostError: the process of this run was lost {MAX_LOSSES} times (killed, or the machine stopped) without "
    "getting further in between: see the end of its log on the worker, give it less to do at once or more memory, "
    "then retry the run"
)

_run = models.TrainingRun


async def requeue_expired(session: AsyncSession) -> list[UUID]:
    """Runs whose process went silent wait again: their ids. One that was lost too often fails instead.

    Steps that are done again after a loss are no progress: a step that kills its process would never be given up.
    """
    losses = case((_run.step > _run.lost_at, 1), else_=_run.losses + 1)
    too_often = and_(~_run.cancel_requested, losses >= MAX_LOSSES)
    fate = case((_run.cancel_requested, RunState.CANCELLED), (too_often, RunState.FAILED), else_=RunState.QUEUED)
    ended = case((_run.cancel_requested | too_often, func.clock_timestamp()), else_=None)
    failure = case((too_often, _LOST), else_=None)
    rows = await session.execute(
        update(_run)
        .where(_run.state == RunState.RUNNING, _run.lease_until < func.clock_timestamp())
        .values(
            state=fate,
            losses=losses,
            lost_at=func.greatest(_run.lost_at, _run.step),
            failure=failure,
            finished_at=ended,
            **WAITS,
        )
        .returning(_run.id, _run.state)
    )
    changed = rows.all()
    for row in changed:
        await runs.tell(session, row.id)
    return [row.id for row in changed if row.state == RunState.QUEUED]


async def expire(session: AsyncSession, run_id: UUID, owner: str) -> None:
    """The owner's process is known to be dead: nobody need wait until its lease runs out."""
    await session.execute(
        update(_run)
        .where(_run.id == run_id, _run.owner == owner, _run.state == RunState.RUNNING)
        .values(lease_until=func.clock_timestamp())
    )


async def any_running(session: AsyncSession) -> bool:
    """Of any project."""
    return bool(await session.scalar(select(exists().where(_run.state == RunState.RUNNING))))


async def to_ring(session: AsyncSession) -> list[UUID]:
    """The next run of each project that could begin, unless the doorbell was rung for it a moment ago.

    Each is counted as rung. The moment grows with every ring, up to five minutes: all workers may be busy.
    """
    other = aliased(_run)
    first = exists().where(
        other.project_id == _run.project_id,
        or_(
            other.state == RunState.RUNNING,
            and_(
                other.state == RunState.QUEUED,
                tuple_(other.created_at, other.id) < tuple_(_run.created_at, _run.id),
            ),
        ),
    )
    seconds = func.least(func.power(2, func.least(_run.rings, 9)), _LONGEST_PAUSE)  # 2 ** 1024 would be an error
    pause = func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    due = or_(_run.rung_at.is_(None), _run.rung_at + pause < func.clock_timestamp())
    chosen = select(_run.id).where(_run.state == RunState.QUEUED, ~first, due).with_for_update(skip_locked=True)
    rung = update(_run).where(_run.id.in_(chosen)).values(rings=_run.rings + 1, rung_at=func.clock_timestamp())
    return list(await session.scalars(rung.returning(_run.id)))
