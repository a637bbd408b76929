"""Shadows in the database: a queue of finished tasks that another release replays, and their results."""

from collections.abc import AsyncIterator, Collection
from uuid import UUID

import msgspec
from sqlalchemy import delete, inspect, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Stop, Trajectory
from app.db import lease, tables
from app.db.database import pack
from app.db.notify import RELEASES, notify
from app.db.tables import TaskState

_BATCH = 100  # trajectories per query

_shadow = tables.Shadow
_queue = lease.LeaseQueue(_shadow, _shadow.finished_at.is_(None))


class ShadowOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a shadow ended. `stop` is None if the rollout failed."""

    stop: Stop | None = None
    failure: str | None = None
    score: float | None = None
    turns: int = 0
    generated_tokens: int = 0
    same_changes: bool | None = None


class ShadowedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task, and of its shadow once that has ended."""

    score: float | None  # of the task's own check
    turns: int
    generated_tokens: int
    shadow: ShadowOutcome | None


async def add(session: AsyncSession, release_id: UUID, task_ids: Collection[UUID]) -> None:
    """Queue tasks to be replayed by a release, each once."""
    rows = [{"release_id": release_id, "task_id": task_id} for task_id in task_ids]
    if rows:
        await session.execute(insert(_shadow).values(rows).on_conflict_do_nothing())
        await notify(session, RELEASES, release_id)


async def add_replay(session: AsyncSession, release_id: UUID, task_id: UUID) -> tables.Shadow:
    """Queue a task to be done again on its recorded calls. A result is kept, unless that could not be executed."""
    key = {"release_id": release_id, "task_id": task_id, "recorded": True}
    which = [getattr(_shadow, name) == value for name, value in key.items()]
    await session.execute(delete(_shadow).where(*which, _shadow.finished_at.is_not(None), _shadow.stop.is_(None)))
    await session.execute(insert(_shadow).values(key).on_conflict_do_nothing())
    await notify(session, RELEASES, release_id)
    return await session.get_one(_shadow, tuple(key.values()), populate_existing=True)


async def replay(session: AsyncSession, release_id: UUID, task_id: UUID) -> tables.Shadow | None:
    """The replay of a task by a release, if it was asked for."""
    return await session.get(_shadow, (release_id, task_id, True))


async def claim(session: AsyncSession, owner: str, lease_seconds: float) -> tables.Shadow | None:
    """The oldest shadow that waits or whose lease has expired, or None. Two processes never get the same one.

    Replays go first: a person waits for them.
    """
    for recorded in (True, False):
        claimed = _queue.claim(owner, lease_seconds, _shadow.recorded.is_(recorded)).returning(_shadow)
        shadow: tables.Shadow | None = await session.scalar(claimed.execution_options(populate_existing=True))
        if shadow is not None:
            return shadow
    return None


async def finish(
    session: AsyncSession, shadow: tables.Shadow, outcome: ShadowOutcome, trajectory: Trajectory | None = None
) -> bool:
    """Store the outcome, and the trajectory of a replay.

    False, and nothing is written: the shadow is no longer the owner's.
    """
    keys = inspect(_shadow).primary_key
    which = (key == getattr(shadow, key.name) for key in keys)
    record = pack(trajectory) if trajectory else None
    finished = _queue.finish(shadow.owner or "", *which, record=record, **msgspec.structs.asdict(outcome))
    return await session.scalar(finished.returning(_shadow.task_id)) is not None


async def hand_back(session: AsyncSession, process: str) -> None:
    """Let others claim the process's shadows at once; the attempt does not count."""
    await session.execute(_queue.hand_back_all(process, attempt=_shadow.attempt - 1))


async def abandon(session: AsyncSession, process: str) -> None:
    """Let others claim the shadows of a dead process. The attempt counts: a shadow may have been the cause."""
    await session.execute(_queue.hand_back_all(process))


async def records(
    session: AsyncSession, project_id: UUID, *, other_than: UUID, limit: int
) -> AsyncIterator[tuple[UUID, bytes]]:
    """The project's latest finished tasks, newest first, with their stored trajectories.

    Those of the release `other_than`, and those that ran a skill, are left out.
    """
    task, trajectory = tables.Task, tables.Trajectory
    newest = (
        select(task.id, trajectory.record)
        .join(trajectory, trajectory.task_id == task.id)
        .where(task.project_id == project_id, task.state == TaskState.DONE, task.release_id != other_than)
        .where(task.skill_run.is_(None))
        .order_by(task.created_at.desc(), task.id.desc())
    )
    for start in range(0, limit, _BATCH):
        rows = (await session.execute(newest.offset(start).limit(min(_BATCH, limit - start)))).all()
        for row in rows:
            yield row.id, row.record
        if len(rows) < _BATCH:
            return


async def of_release(session: AsyncSession, release_id: UUID) -> list[ShadowedTask]:
    """The results of the shadows, in the order they were queued."""
    rows = await session.execute(
        select(tables.Task, _shadow)
        .join(_shadow, _shadow.task_id == tables.Task.id)
        .where(_shadow.release_id == release_id, ~_shadow.recorded)
        .order_by(_shadow.created_at, _shadow.task_id)
        .execution_options(populate_existing=True)
    )
    return [
        ShadowedTask(
            score=(task.score if task.overruled_score is None else task.overruled_score) if task.checked else None,
            turns=task.turns,
            generated_tokens=task.generated_tokens,
            shadow=outcome_of(shadow),
        )
        for task, shadow in rows
    ]


def outcome_of(shadow: tables.Shadow) -> ShadowOutcome | None:
    """None until it has ended."""
    if shadow.finished_at is None:
        return None
    return ShadowOutcome(
        stop=None if shadow.stop is None else Stop(shadow.stop),
        failure=shadow.failure,
        score=shadow.score,
        turns=shadow.turns,
        generated_tokens=shadow.generated_tokens,
        same_changes=shadow.same_changes,
    )
