"""The consequences of a task's end, in the transaction that ends it."""

from uuid import UUID

from sqlalchemy import Uuid, and_, bindparam, case, delete, exists, false, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Stop
from app.db import tables, verifications
from app.db.database import execute
from app.db.results import executed
from app.db.tables import ApprovalState, TaskState
from app.projects import webhooks
from app.projects.settings import WebhookEvent

_approval = tables.Approval
_EVENTS: dict[TaskState, WebhookEvent] = {
    TaskState.DONE: "task.done",
    TaskState.FAILED: "task.failed",
    TaskState.CANCELLED: "task.cancelled",
}

_task, _project = tables.Task, tables.Project
_task_id = bindparam("task", type_=Uuid)
_call = tables.TaskCall
_lost = exists().where(_call.task_id == _task.id, _call.record.is_(None), ~_call.repeatable)
_resumable = and_(_task.stop == Stop.IN_DOUBT, _lost)  # once a person knows whether the call arrived
_ended = select(_task.id).where(_task.id == _task_id, ~func.coalesce(_resumable, false()))
_waits = _approval.state == ApprovalState.WAITING
_withdrawn = {  # and what is left of digests of arguments
    "state": case((_waits, ApprovalState.WITHDRAWN.value), else_=_approval.state),
    "decided_at": case((_waits, func.clock_timestamp()), else_=_approval.decided_at),
    "digest": "",
    "shown": None,
}
_CLEAN_UP = (
    select(
        _task.project_id,
        _task.state,
        _task.stop,
        _task.score,
        _task.scenario,
        _task.check_code,
        executed().label("executed"),
        _project.settings,
    )
    .join(_project, _project.id == _task.project_id)
    .where(_task.id == _task_id)
    .add_cte(
        delete(tables.TaskTurn).where(tables.TaskTurn.task_id.in_(_ended)).cte("old_turns"),
        delete(tables.TaskCall).where(tables.TaskCall.task_id.in_(_ended)).cte("old_calls"),
        update(_approval)
        .where(_approval.task_id.in_(_ended), or_(_waits, _approval.digest != ""))
        .values(_withdrawn)
        .cte("withdrawn"),
    )
)


async def clean_up(session: AsyncSession, task_id: UUID) -> None:
    """Delete the journal of a task that has just ended, withdraw the approval that it waited for, and have the
    project's webhook told and its verifier asked.

    It tells of passwords, and is kept only for a task that may go on: one with a call in doubt.
    """
    row = (await execute(session, _CLEAN_UP, {"task": task_id})).one()
    if row.settings.get("webhook"):
        data = {"state": row.state, "stop_reason": row.stop, "score": row.score, "scenario": row.scenario}
        await webhooks.enqueue(session, row.project_id, task_id, _EVENTS[row.state], data)
    if row.settings.get("verifier") and row.executed and not row.check_code:
        await verifications.enqueue(session, row.project_id, task_id)
