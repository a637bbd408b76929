"""Shadows in the database: finished tasks that another release does again, as a queue, and what came of them."""

from collections.abc import AsyncIterator, Collection
from uuid import UUID

import msgspec
from sqlalchemy import func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.db.clock import from_now
from app.db.models import TaskState
from app.db.releases import CHANNEL
from app.records import Stop

_BATCH = 100  # trajectories read at once

_shadow = models.Shadow


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a shadow ended. Without a stop, it could not be carried out."""

    stop: Stop | None = None
    failure: str | None = None
    score: float | None = None
    turns: int = 0
    generated_tokens: int = 0


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A task as it was done, and what its shadow came to; None while that waits."""

    score: float | None  # of the task's own check
    turns: int
    generated_tokens: int
    shadow: Outcome | None


async def add(session: AsyncSession, release_id: UUID, task_ids: Collection[UUID]) -> None:
    """Put tasks at the end of the queue. Those that the release has done again already are not done once more."""
    rows = [{"release_id": release_id, "task_id": task_id} for task_id in task_ids]
    if rows:
        await session.execute(insert(_shadow).values(rows).on_conflict_do_nothing())
        await session.execute(select(func.pg_notify(CHANNEL, str(release_id))))


async def claim(session: AsyncSession, owner: str, lease_seconds: float) -> models.Shadow | None:
    """The oldest that waits or whose process went silent, or None. Two processes never get the same one."""
    free = or_(_shadow.lease_until.is_(None), _shadow.lease_until < func.clock_timestamp())
    oldest = (
        select(_shadow.release_id, _shadow.task_id)
        .where(_shadow.finished_at.is_(None), free)
        .order_by(_shadow.created_at)
        .with_for_update(skip_locked=True)
        .limit(1)
        .cte("oldest")
    )
    claimed: models.Shadow | None = await session.scalar(
        update(_shadow)
        .where(_shadow.release_id == oldest.c.release_id, _shadow.task_id == oldest.c.task_id)
        .values(owner=owner, lease_until=from_now(lease_seconds), attempt=_shadow.attempt + 1)
        .returning(_shadow)
        .execution_options(populate_existing=True)
    )
    return claimed


async def finish(session: AsyncSession, shadow: models.Shadow, outcome: Outcome) -> bool:
    """False, and nothing is written: it is no longer the owner's."""
    mine = (_shadow.release_id == shadow.release_id, _shadow.task_id == shadow.task_id)
    done = await session.scalar(
        update(_shadow)
        .where(*mine, _shadow.owner == shadow.owner, _shadow.finished_at.is_(None))
        .values(
            finished_at=func.clock_timestamp(), owner=None, lease_until=None, **msgspec.structs.asdict(outcome)
        )
        .returning(_shadow.task_id)
    )
    return done is not None


async def hand_back(session: AsyncSession, owner: str) -> None:
    """What the owner holds may be taken up by another at once."""
    free = {"owner": None, "lease_until": None, "attempt": _shadow.attempt - 1}
    await session.execute(update(_shadow).where(_shadow.owner == owner).values(free))


async def records(
    session: AsyncSession, project_id: UUID, *, other_than: UUID, limit: int
) -> AsyncIterator[tuple[UUID, bytes]]:
    """The latest finished tasks of the project, newest first, with their trajectories as they are stored.

    Those that the release `other_than` did itself are left out.
    """
    task, trajectory = models.Task, models.Trajectory
    newest = (
        select(task.id, trajectory.record)
        .join(trajectory, trajectory.task_id == task.id)
        .where(task.project_id == project_id, task.state == TaskState.DONE, task.release_id != other_than)
        .order_by(task.created_at.desc(), task.id.desc())
    )
    for start in range(0, limit, _BATCH):
        rows = (await session.execute(newest.offset(start).limit(min(_BATCH, limit - start)))).all()
        for row in rows:
            yield row.id, row.record
        if len(rows) < _BATCH:
            return


async def of_release(session: AsyncSession, release_id: UUID) -> list[Pair]:
    """In the order they were asked for."""
    rows = await session.execute(
        select(models.Task, _shadow)
        .join(_shadow, _shadow.task_id == models.Task.id)
        .where(_shadow.release_id == release_id)
        .order_by(_shadow.created_at, _shadow.task_id)
        .execution_options(populate_existing=True)
    )
    return [
        Pair(
            score=task.score if task.checked else None,
            turns=task.turns,
            generated_tokens=task.generated_tokens,
            shadow=_outcome(shadow),
        )
        for task, shadow in rows
    ]


def _outcome(shadow: models.Shadow) -> Outcome | None:
    if shadow.finished_at is None:
        return None
    return Outcome(
        stop=None if shadow.stop is None else Stop(shadow.stop),
        failure=shadow.failure,
        score=shadow.score,
        turns=shadow.turns,
        generated_tokens=shadow.generated_tokens,
    )
