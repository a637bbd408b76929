"""The consequences of a task's end, in the transaction that ends it."""

from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, webhooks
from app.db.models import ApprovalState, TaskState
from app.project.webhook import WebhookEvent

_approval = models.Approval
_EVENTS: dict[TaskState, WebhookEvent] = {
    TaskState.DONE: "task.done",
    TaskState.FAILED: "task.failed",
    TaskState.CANCELLED: "task.cancelled",
}


async def clean_up(session: AsyncSession, task_id: UUID) -> None:
    """Delete the journal of a task that has just ended, withdraw the approval that it waited for, and have the
    project's webhook told.

    The task is never resumed, and its turns, calls and digests of arguments tell of passwords.
    """
    await session.execute(delete(models.TaskTurn).where(models.TaskTurn.task_id == task_id))
    await session.execute(delete(models.TaskCall).where(models.TaskCall.task_id == task_id))
    waiting = update(_approval).where(_approval.task_id == task_id, _approval.state == ApprovalState.WAITING)
    await session.execute(waiting.values(state=ApprovalState.WITHDRAWN, decided_at=func.clock_timestamp()))
    await session.execute(
        update(_approval).where(_approval.task_id == task_id, _approval.digest != "").values(digest="")
    )
    await _announce(session, task_id)


async def _announce(session: AsyncSession, task_id: UUID) -> None:
    task = models.Task
    query = select(task.project_id, task.state, task.stop, task.score, task.scenario).where(task.id == task_id)
    row = (await session.execute(query)).one()
    data = {"state": row.state, "stop_reason": row.stop, "score": row.score, "scenario": row.scenario}
    await webhooks.enqueue(session, row.project_id, task_id, _EVENTS[row.state], data)
