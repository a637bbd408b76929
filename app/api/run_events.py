"""GET a training run's steps as they are taken (server-sent events)."""

from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath
from litestar.response import ServerSentEvent
from litestar.response.sse import ServerSentEventMessage

from app.api.access import Asking, project_names
from app.api.notifications import EventFeed
from app.api.problem import problems
from app.api.run_view import RunView, StepView
from app.api.validation import LastEventId
from app.db import models, runs
from app.db.database import Sessions
from app.db.models import RunState
from app.errors import NotFoundError

_OPEN = (RunState.QUEUED, RunState.RUNNING)
_AT_ONCE = 500  # steps read in one go

_ABOUT = ResponseSpec(
    None,
    description="`event` is state (queued, running), step or done; `data` is JSON: of step what it measured, of "
    "the others the run. Steps have their number as `id`: send the last one as `Last-Event-ID` to go on from "
    "there. A run that goes on from its checkpoint takes steps again. A comment comes at least every 15 s; "
    "after `done` the stream ends.",
    media_type="text/event-stream",
    generate_examples=False,
)


class RunStreamController(Controller):
    path = "/training-runs/{run_id:uuid}/events"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(
        summary="Events of a training run, live",
        media_type="text/event-stream",
        responses={200: _ABOUT, **problems(400, 401, 403, 404)},
    )
    async def events(
        self,
        run_id: FromPath[UUID],
        access: Asking,
        sessions: NamedDependency[Sessions],
        feed: NamedDependency[EventFeed],
        last_event_id: LastEventId = 0,
    ) -> ServerSentEvent:
        """How it stands, the steps so far, then what happens next, up to `done`."""
        async with sessions() as session:
            run = await runs.get(session, run_id, access.project_id)
            project = (await project_names(session))[run.project_id]
        return ServerSentEvent(_tell(sessions, feed, run.id, project, last_event_id))


async def _tell(
    sessions: Sessions, feed: EventFeed, run_id: UUID, project: str, seen: int
) -> AsyncIterator[ServerSentEventMessage]:
    """No session is held between two looks. A deleted run ends the stream."""
    told: tuple[RunState, int] | None = None
    with feed.subscribe(run_id) as news:
        while True:
            news.clear()  # before looking: what happens meanwhile wakes us again
            try:
                run, rows = await _look(sessions, run_id, seen)
            except NotFoundError:
                return
            if run.state in _OPEN and told != (run.state, run.attempt):
                told = run.state, run.attempt
                yield _message("state", RunView.whole(run, project, None))
            for row in rows:
                yield _message("step", StepView.of(row), row.index)
            seen = rows[-1].index if rows else min(seen, run.step)
            if not rows and run.state not in _OPEN:
                yield _message("done", RunView.whole(run, project, None))
                return
            if not rows and not await feed.wait(news):
                yield ServerSentEventMessage(comment="ping", data=None)


async def _look(sessions: Sessions, run_id: UUID, seen: int) -> tuple[models.TrainingRun, list[models.RunStep]]:
    """The run first: whatever ended it, its steps were there before."""
    async with sessions() as session:
        run = await runs.get(session, run_id)
        seen = seen if seen <= run.step else run.step - 1  # it went back to its checkpoint
        return run, list(await runs.steps(session, run_id, seen, _AT_ONCE))


def _message(event: str, data: object, number: int | None = None) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=msgspec.json.encode(data), event=event, id=number)
