"""The accepted tasks are the queue. A runner holds a task by a lease, and writes to it only while it does."""

from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, ScalarSelect, and_, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import canaries, models
from app.db.clock import from_now
from app.db.models import TASK_MOVES, ReleaseState, TaskState
from app.db.tasks import CHANNEL
from app.errors import ConflictError
from app.records import Json, Stop


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended. A score given here is the check's, and feedback does not change it."""

    state: TaskState
    stop: Stop | None = None
    answer: Json = None
    failure: str | None = None
    score: float | None = None
    turns: int = 0
    generated_tokens: int = 0
    calls: int = 0


async def claim(session: AsyncSession, owner: str, lease_seconds: float) -> models.Task | None:
    """The oldest task that waits or whose runner went silent, or None. Two runners never get the same one.

    The first claim pins the release, the canary for its share of the tasks and else the active one, and sets the
    clock that the sandbox shows.
    """
    task = models.Task
    free = or_(
        task.state == TaskState.ACCEPTED,
        and_(task.state == TaskState.RUNNING, task.lease_until < func.clock_timestamp()),
    )
    oldest = (
        select(task.id)
        .where(free)
        .order_by(task.created_at, task.id)
        .with_for_update(skip_locked=True)
        .limit(1)
        .scalar_subquery()
    )
    active = _release_in(ReleaseState.ACTIVE)
    canary = _release_in(ReleaseState.CANARY, canaries.dealt())
    return await session.scalar(
        update(task)
        .where(task.id == oldest)
        .values(
            state=TaskState.RUNNING,
            owner=owner,
            lease_until=from_now(lease_seconds),
            attempt=task.attempt + 1,
            started_at=func.coalesce(task.started_at, func.clock_timestamp()),
            release_id=func.coalesce(task.release_id, canary, active),
        )
        .returning(task)
        .execution_options(populate_existing=True)
    )


async def extend(
    session: AsyncSession, owner: str, lease_seconds: float, task_ids: Collection[UUID] | None = None
) -> dict[UUID, bool]:
    """Renew the leases of everything the owner holds, or of those named: task id -> is it to be cancelled?

    A task that is missing was taken up by another, or deleted: its rollout here must stop.
    """
    mine = models.Task.owner == owner
    if task_ids is not None:
        mine &= models.Task.id.in_(task_ids)
    rows = await session.execute(
        update(models.Task)
        .where(mine, models.Task.state == TaskState.RUNNING)
        .values(lease_until=from_now(lease_seconds))
        .returning(models.Task.id, models.Task.cancel_requested)
    )
    return {row.id: row.cancel_requested for row in rows}


async def cancelled(session: AsyncSession, owner: str) -> set[UUID]:
    """Of the tasks the owner holds, those that are to be cancelled."""
    return set(
        await session.scalars(
            select(models.Task.id).where(
                models.Task.owner == owner,
                models.Task.state == TaskState.RUNNING,
                models.Task.cancel_requested,
            )
        )
    )


async def hold(session: AsyncSession, task_id: UUID, owner: str) -> None:
    """Nobody else can take the task up before this transaction ends. ConflictError: somebody else has already."""
    held = await session.scalar(
        select(models.Task.id)
        .where(models.Task.id == task_id, models.Task.owner == owner, models.Task.state == TaskState.RUNNING)
        .with_for_update(read=True)
    )
    if held is None:
        raise ConflictError(f"task {task_id} is no longer held by {owner}: drop it")


async def finish(session: AsyncSession, task_id: UUID, owner: str, outcome: Outcome) -> bool:
    """False, and nothing is written: the task is no longer the owner's, and the rollout is to be dropped.

    The journal of turns and calls goes: nobody resumes the task any more, and it holds passwords in the clear.
    """
    if outcome.state not in TASK_MOVES[TaskState.RUNNING]:
        raise ValueError(f"a task cannot end as {outcome.state}")
    mine = await _write(
        session,
        and_(models.Task.id == task_id, models.Task.owner == owner),
        checked=outcome.score is not None,
        finished_at=func.clock_timestamp(),
        owner=None,
        lease_until=None,
        **msgspec.structs.asdict(outcome),
    )
    if mine:
        await session.execute(delete(models.TaskTurn).where(models.TaskTurn.task_id == task_id))
        await session.execute(delete(models.TaskCall).where(models.TaskCall.task_id == task_id))
    return bool(mine)


async def hand_back(session: AsyncSession, owner: str) -> Sequence[UUID]:
    """Everything the owner holds may be taken up by another at once, from where it stands."""
    given = await _write(session, models.Task.owner == owner, owner=None, lease_until=func.clock_timestamp())
    if given:
        await session.execute(select(func.pg_notify(CHANNEL, "")))
    return given


def _release_in(state: ReleaseState, *more: ColumnElement[bool]) -> ScalarSelect[UUID]:
    """The task's project has one at most."""
    release = models.Release
    found = select(release.id).where(release.project_id == models.Task.project_id, release.state == state, *more)
    return found.scalar_subquery()


async def _write(session: AsyncSession, which: ColumnElement[bool], **values: Json) -> Sequence[UUID]:
    rows = await session.scalars(
        update(models.Task)
        .where(which, models.Task.state == TaskState.RUNNING)
        .values(**values)
        .returning(models.Task.id)
    )
    return rows.all()
