"""The events of a training run as a live stream (server-sent events)."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from app.api.run_view import RunView, StepView
from app.base.errors import NotFoundError
from app.base.values import Json
from app.db import runs, tables
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.db.tables import RunState
from app.projects.authorization import project_names
from app.web.access import Caller
from app.web.fields import MOST, LastEventId
from app.web.problem import problems
from app.web.sse import BATCH_SIZE, EventBatch, event_stream, message, stream_specs

_DONE_ID = MOST
_OPEN = (RunState.QUEUED, RunState.RUNNING)

_STREAM = stream_specs(
    "`event` is state (queued, running), step, part or done; `data` is JSON: the metrics of a step, how much is "
    "done of what the run does now (rollouts, exam tasks) and since when, otherwise the run. "
    "The `id` of a step is its number: to resume, send the last one as `Last-Event-ID`. The `id` of done is the "
    "largest. "
    "A run that resumes from its checkpoint repeats steps."
)


class RunEventsController(Controller):
    path = "/training-runs/{run_id:uuid}/events"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(
        summary="Stream the events of a training run",
        media_type="text/event-stream",
        responses={**_STREAM, **problems(400, 401, 403, 404)},
    )
    async def events(
        self,
        run_id: FromPath[UUID],
        access: Caller,
        sessions: NamedDependency[Sessions],
        listener: NamedDependency[NotificationListener],
        last_event_id: LastEventId = 0,
    ) -> Response[Any]:
        """Its state and the steps so far, then new ones as they happen, up to `done`."""
        async with sessions() as session:
            run = await runs.get(session, run_id, access.project_id)
            project = (await project_names(session))[run.project_id]
        reader = _RunReader(sessions, run.id, project, last_event_id)
        return await event_stream(listener, run.id, access, reader.read)


class _RunReader:
    def __init__(self, sessions: Sessions, run_id: UUID, project: str, position: int) -> None:
        self._sessions = sessions
        self._run_id = run_id
        self._project = project
        self._position = position  # the last step sent
        self._part: dict[str, Json] | None = None  # the last one sent
        self._saw_done = position == _DONE_ID
        self._attempt: tuple[RunState, int] | None = None  # the last state sent, and of which attempt

    async def read(self) -> EventBatch:
        try:
            run, steps = await self._load()
        except NotFoundError:  # it was deleted
            return EventBatch([], ended=True)
        messages = []
        if run.state in _OPEN and self._attempt != (run.state, run.attempt):
            self._attempt = run.state, run.attempt
            messages.append(message("state", RunView.full(run, self._project, None)))
        messages += [message("step", StepView.of(row), row.index) for row in steps]
        if run.part is not None and run.part != self._part:
            self._part = run.part
            messages.append(message("part", run.part))
        self._position = steps[-1].index if steps else min(self._position, run.step)
        ended = not steps and run.state not in _OPEN
        if ended and not self._saw_done:
            messages.append(message("done", RunView.full(run, self._project, None), _DONE_ID))
        return EventBatch(messages, ended)

    async def _load(self) -> tuple[tables.TrainingRun, list[tables.RunStep]]:
        """The run first: once it has ended, all of its steps are stored."""
        async with self._sessions() as session:
            run = await runs.get(session, self._run_id)
            if self._saw_done and run.state not in _OPEN:
                return run, []
            resumed = self._position > run.step  # from its checkpoint
            after = run.step - 1 if resumed else self._position
            return run, list(await runs.steps(session, self._run_id, after, BATCH_SIZE))
