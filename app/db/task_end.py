"""The consequences of a task's end, in the transaction that ends it."""

from uuid import UUID

from sqlalchemy import delete, func, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.db.models import ApprovalState

_approval = models.Approval


async def clean_up(session: AsyncSession, task_id: UUID) -> None:
    """Delete the journal of a task that has just ended, and withdraw the approval that it waited for.

    The task is never resumed, and its turns, calls and digests of arguments tell of passwords.
    """
    await session.execute(delete(models.TaskTurn).where(models.TaskTurn.task_id == task_id))
    await session.execute(delete(models.TaskCall).where(models.TaskCall.task_id == task_id))
    waiting = update(_approval).where(_approval.task_id == task_id, _approval.state == ApprovalState.WAITING)
    await session.execute(waiting.values(state=ApprovalState.WITHDRAWN, decided_at=func.clock_timestamp()))
    await session.execute(
        update(_approval).where(_approval.task_id == task_id, _approval.digest != "").values(digest="")
    )
