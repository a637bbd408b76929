"""Waits for a task, and tells a client what happens in it."""

import asyncio
from typing import Annotated, Final
from uuid import UUID

import msgspec

from app.api.mcp_server.tool import ToolCall
from app.api.task_events import TaskReader
from app.api.task_view import TaskView, view_task
from app.base.errors import UnauthorizedError
from app.db import results, tables, tasks
from app.db.database import TRANSIENT, reading

_CHARS = 500  # of a message

Wait = Annotated[
    float,
    msgspec.Meta(
        ge=0,
        le=3_600,
        description="answer once the task has ended or waits for a person's approval, or after so many seconds",
    ),
]


async def followed(call: ToolCall, task_id: UUID, seconds: float, after: int | None = None) -> TaskView:
    """The task once it has ended or begins to wait, or after so many seconds. Events are reported as they happen.

    `after` is the event from which on; None: from now on.
    """
    async with reading(call.parts.sessions) as session:
        task = await tasks.get(session, task_id, call.access.project_id)
        if after is None:
            after = await results.latest(session, task.id)
    if seconds and task.state not in tables.TASK_END_STATES:
        try:
            async with asyncio.timeout(seconds) as clock:
                await _follow(call, task_id, after)
        except TimeoutError:
            if not clock.expired():
                raise
    async with reading(call.parts.sessions) as session:
        return await view_task(
            session, await tasks.get(session, task_id, call.access.project_id), call.parts.limits
        )


async def _follow(call: ToolCall, task_id: UUID, after: int) -> None:
    """Raises UnauthorizedError if the key is revoked meanwhile."""
    reader, listener = TaskReader(call.parts.sessions, task_id, after), call.parts.listener
    with listener.subscribe(task_id) as news:
        while True:
            news.clear()  # before reading: events during the read wake it again
            if await call.access.has_ended():
                raise UnauthorizedError("this key was revoked")
            found, ended = await _read(reader)
            for each in found:
                await call.report(each.seq, message_of(each))
            if ended or any(map(_begins_to_wait, found)):
                return
            if not found:
                await listener.wait(news)


async def _read(reader: TaskReader) -> tuple[list[tables.TaskEvent], bool]:
    """Nothing while the database does not answer: a call that failed now would be made again."""
    try:
        return await reader.read()
    except TRANSIENT:
        return [], False


def _begins_to_wait(event: tables.TaskEvent) -> bool:
    return event.kind == "approval" and event.data.get("status") == "wanted"


_FIELDS: Final = {
    "turn": ("text",),
    "call": ("api", "error"),
    "observation": ("text",),
    "skill": ("status", "name", "reason"),
    "approval": ("status", "api", "because", "reason"),
    "check": ("status", "output"),
    "remark": ("text",),
    "done": ("state", "failure"),
}


def message_of(event: tables.TaskEvent) -> str:
    """A line or more for people, such as `call: mail.send_mail`."""
    said = " ".join(str(event.data[name]) for name in _FIELDS.get(event.kind, ()) if event.data.get(name))
    text = f"{event.kind}: {said}"
    return text if len(text) <= _CHARS else f"{text[:_CHARS]}..."
