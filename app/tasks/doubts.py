"""Calls in doubt: a person finds out what became of one, and its task goes on.

A task that ends with a call in doubt keeps its journal, from which it is resumed.
"""

from uuid import UUID

from sqlalchemy import delete, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.base.values import Call, Json, ScoreSource, Stop
from app.db import results, tables
from app.db.notify import TASKS, notify
from app.db.tables import AuditAction, TaskState
from app.projects import audit, usage
from app.tasks import calls, turns

_task, _event = tables.Task, tables.TaskEvent


async def of_task(session: AsyncSession, task: tables.Task) -> Call | None:
    """The call whose settlement lets an ended task go on; None for a task that ended otherwise."""
    if task.state is not TaskState.DONE or task.stop is not Stop.IN_DOUBT:
        return None
    made = await calls.of_task(session, task.id)
    lost = next((each for each in made if each.call is None and not each.repeatable), None)
    begun = await turns.of_task(session, task.id)
    if lost is None or not begun:  # deleted with the trajectory
        return None
    return Call(seq=lost.seq, turn=begun[-1].index, api=lost.api, arguments=lost.arguments)


async def settle(
    session: AsyncSession, task_id: UUID, actor: str, *, arrived: bool, result: Json = None
) -> tables.Task:
    """Let a task go on: its code is run again, with `result` for a call that arrived, else the call is sent.

    Raises ConflictError if no call of the task is in doubt.
    """
    task = await session.get_one(_task, task_id, with_for_update=True, populate_existing=True)
    call = await of_task(session, task)
    if call is None:
        raise ConflictError(f"no call of task {task_id} is in doubt")
    await calls.settle(session, task_id, call, arrived=arrived, result=result)
    await _reopen(session, task)
    data = {"turn": call.turn, "seq": call.seq, "api": call.api, "arrived": arrived, "settled_by": actor}
    ended = _event.task_id == task_id, _event.kind == "done"  # its followers wait for the last event
    await session.execute(update(_event).where(*ended).values(kind="settled", data=data))
    if not await results.has(session, task_id, "settled"):
        await results.append(session, task_id, "settled", data)
    detail = {"task": str(task_id), "api": call.api, "arrived": arrived}
    await audit.add(session, task.project_id, None, actor, AuditAction.CALL_SETTLED, detail)
    return task


async def _reopen(session: AsyncSession, task: tables.Task) -> None:
    """Its end counts for nothing, and of its scores only a person's stays."""
    used = {name: -(getattr(task, name) or 0) for name in usage.OF_TASKS}
    await usage.add(session, task.project_id, usage.SUBMISSIONS, done=-1, **used)
    await session.execute(delete(tables.Trajectory).where(tables.Trajectory.task_id == task.id))
    task.state, task.stop, task.failure, task.answer, task.finished_at = TaskState.RUNNING, None, None, None, None
    task.turns = task.generated_tokens = task.calls = task.prompt_tokens = 0
    task.cost = None
    if task.score_source is not ScoreSource.PERSON:
        task.score, task.score_source, task.checked, task.judged_by = None, None, False, None
        await session.execute(delete(tables.Verification).where(tables.Verification.task_id == task.id))
    await session.flush()
    await notify(session, TASKS)
