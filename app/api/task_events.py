"""The events of a task as a live stream (server-sent events)."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.db import results, tasks
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.db.tables import TASK_END_STATES, TaskEvent
from app.web.access import Caller
from app.web.fields import LastEventId
from app.web.problem import problems
from app.web.sse import BATCH_SIZE, EventBatch, event_stream, message, stream_specs

_STREAM = stream_specs(
    "`event` is turn, call, observation, skill, approval, prompt, check, remark or done; `id` counts up; `data` "
    "is JSON, "
    "with the time at which it was stored (`at`). "
    "A call names the offered skill that made it (`skill`; null: the agent's own code did), and has the "
    "`http_status` of its answer (null: none came, or the protocol has none); of a `result` with "
    "more than 2,000 characters as JSON it has the beginning as text, and `cut` is true. "
    "The `status` of a check is called (it made an API call), scored or failed, with its `output`. "
    "The `status` of a skill is offered, skipped (it cannot be loaded), used, written or refused (it holds a "
    "secret, or attempted a call beyond its manifest). "
    "The `status` of an approval is wanted (with `because`, and in `changes` the `seq` of the calls before it "
    "that may have changed something), approved, refused or expired. "
    "A remark is about the deployment, such as a model that was not made for the project's APIs. "
    "A prompt means that the task goes on under another prompt than it began under, because no runner has that. "
    "To resume, send the last id as `Last-Event-ID`."
)


class TaskEventsController(Controller):
    path = "/tasks/{task_id:uuid}/events"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(
        summary="Stream the events of a task",
        media_type="text/event-stream",
        responses={**_STREAM, **problems(400, 401, 403, 404)},
    )
    async def events(
        self,
        task_id: FromPath[UUID],
        access: Caller,
        sessions: NamedDependency[Sessions],
        listener: NamedDependency[NotificationListener],
        last_event_id: LastEventId = 0,
    ) -> Response[Any]:
        """All events so far, then new ones as they happen, up to `done`."""
        async with sessions() as session:
            task = await tasks.get(session, task_id, access.project_id)
        reader = TaskReader(sessions, task.id, last_event_id)

        async def read() -> EventBatch:
            rows, ended = await reader.read()
            messages = [message(row.kind, {**row.data, "at": row.created_at}, row.seq) for row in rows]
            return EventBatch(messages, ended=ended)

        return await event_stream(listener, task.id, access, read)


class TaskReader:
    """Reads the events of a task after number `position`, as they come."""

    def __init__(self, sessions: Sessions, task_id: UUID, position: int) -> None:
        self._sessions = sessions
        self._task_id = task_id
        self._position = position  # of the last event read

    async def read(self) -> tuple[list[TaskEvent], bool]:
        """The events since the last read, oldest first, and whether there will be no more."""
        async with self._sessions() as session:
            rows = await self._rows(session)
            if not rows and await self._has_ended(session):
                rows = await self._rows(session)  # it may have ended in between
                if not rows:
                    return [], True
        if not rows:
            return [], False
        self._position = rows[-1].seq
        return rows, rows[-1].kind == "done"

    async def _rows(self, session: AsyncSession) -> list[TaskEvent]:
        return list(await results.after(session, self._task_id, self._position, BATCH_SIZE))

    async def _has_ended(self, session: AsyncSession) -> bool:
        """True also for a deleted task. The last event of a task is stored together with its end state."""
        try:
            return (await tasks.get(session, self._task_id)).state in TASK_END_STATES
        except NotFoundError:
            return True
