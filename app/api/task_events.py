"""GET a task's events as they happen (server-sent events)."""

from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath
from litestar.response import ServerSentEvent
from litestar.response.sse import ServerSentEventMessage
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Asking, find_task
from app.api.notifications import EventFeed
from app.api.problem import problems
from app.api.validation import LastEventId
from app.db import events as event_rows
from app.db import tasks
from app.db.database import Sessions
from app.db.models import TASK_MOVES, TaskEvent, TaskState
from app.errors import NotFoundError

_ENDED = TASK_MOVES[TaskState.RUNNING]
_AT_ONCE = 500  # events read in one go

_ABOUT = ResponseSpec(
    None,
    description="`event` is turn, call, observation, skill or done; `id` counts up; `data` is JSON. "
    "`what` of a skill: offered, left_out (it does not load), used or written. "
    "Send the last id as `Last-Event-ID` to go on from there. "
    "A comment comes at least every 15 s; after `done` the stream ends.",
    media_type="text/event-stream",
    generate_examples=False,
)


class StreamController(Controller):
    path = "/tasks/{task_id:uuid}/events"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(
        summary="Events of a task, live",
        media_type="text/event-stream",
        responses={200: _ABOUT, **problems(400, 401, 403, 404)},
    )
    async def events(
        self,
        task_id: FromPath[UUID],
        access: Asking,
        sessions: NamedDependency[Sessions],
        feed: NamedDependency[EventFeed],
        last_event_id: LastEventId = 0,
    ) -> ServerSentEvent:
        """What has happened so far, then what happens next, up to `done`."""
        async with sessions() as session:
            task = await find_task(session, access, task_id)
        return ServerSentEvent(_tell(sessions, feed, task.id, last_event_id))


async def _tell(
    sessions: Sessions, feed: EventFeed, task_id: UUID, seen: int
) -> AsyncIterator[ServerSentEventMessage]:
    """No session is held between two looks; an idle stream costs a dictionary entry. A deleted task ends it."""
    with feed.subscribe(task_id) as news:
        while True:
            news.clear()  # before looking: what happens meanwhile wakes us again
            async with sessions() as session:
                rows = await event_rows.after(session, task_id, seen, _AT_ONCE)
                if not rows and await _is_over(session, task_id):
                    rows = await event_rows.after(session, task_id, seen, _AT_ONCE)  # the end came in between
                    if not rows:
                        return
            for row in rows:
                yield _message(row)
                seen = row.seq
            if rows and rows[-1].kind == "done":
                return
            if not rows and not await feed.wait(news):
                yield ServerSentEventMessage(comment="ping", data=None)


async def _is_over(session: AsyncSession, task_id: UUID) -> bool:
    """Has the task ended, or is it gone? Its last event is stored with its end."""
    try:
        return (await tasks.get(session, task_id)).state in _ENDED
    except NotFoundError:
        return True


def _message(row: TaskEvent) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=msgspec.json.encode(row.data), event=row.kind, id=row.seq)
