"""The page of a task: one timeline, live while the task runs."""

import asyncio
from typing import Annotated, Any
from uuid import UUID

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response.sse import ServerSentEventMessage
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.feedback import FeedbackView
from app.api.task_view import skills_of, view_task
from app.api.trajectories import prompts_of
from app.apis.approvals import store as approvals
from app.apis.approvals.routes import ApprovalView, view_approval
from app.base.errors import NotFoundError
from app.base.values import Trajectory
from app.console.timeline import Timeline, fold
from app.db import feedback, results, tables, tasks, turns
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.db.tables import TASK_END_STATES, ReleaseState
from app.engine.tokenizer import ChatTokenizer
from app.projects.settings import Limits
from app.releases import store as releases
from app.web.access import Db
from app.web.forms import Form
from app.web.pages import Visit, Visitor, page, render, visit_project
from app.web.sse import BATCH_SIZE, EventBatch, event_stream

_MOST_EVENTS = 20_000
_CHOOSE_SKILLS = ("skill", "turn")  # events after which others may have been found, offered, used or written
_SERVES = (ReleaseState.ACTIVE, ReleaseState.CANARY, ReleaseState.RETIRED)

After = Annotated[int, QueryParameter(ge=0)]
LastEventId = Annotated[str, HeaderParameter(name="Last-Event-ID")]


class TaskDetailPage(Controller):
    path = "/tasks/{task_id:uuid}"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def show(
        self,
        task_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        limits: NamedDependency[Limits],
        tokenizer: NamedDependency[ChatTokenizer | None],
    ) -> Response[str]:
        task = await tasks.get(session, task_id, visit.access.project_id)
        visit = await visit_project(visit, session, task.project_id)
        return await task_page(session, visit, task, limits, tokenizer)

    @get("/live", media_type="text/event-stream")
    async def live(  # noqa: PLR0913 - dependencies
        self,
        task_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        sessions: NamedDependency[Sessions],
        listener: NamedDependency[NotificationListener],
        tokenizer: NamedDependency[ChatTokenizer | None],
        after: After = 0,
        last_event_id: LastEventId = "",
    ) -> Response[Any]:
        """The blocks of the timeline that changed, as they change, then `end`."""
        task = await tasks.get(session, task_id, visit.access.project_id)
        position = int(last_event_id) if last_event_id.isdecimal() else after
        reader = _BlockReader(sessions, visit, task.id, position, tokenizer)
        return await event_stream(listener, task.id, visit.access, reader.read)


async def task_page(
    session: AsyncSession,
    visit: Visit,
    task: tables.Task,
    limits: Limits,
    tokenizer: ChatTokenizer | None,
    form: Form[Any] | None = None,
) -> Response[str]:
    """`form` is the feedback that was refused."""
    timeline = fold(await results.after(session, task.id, limit=_MOST_EVENTS))
    trajectory = await _trajectory(session, task)
    if trajectory is not None:
        timeline.enrich(trajectory)
    if timeline.turns:
        timeline.turns[0].prompt = await _first_prompt(session, task, trajectory, tokenizer)
    return page(
        visit,
        "task.html",
        status=400 if form else 200,
        task=task,
        view=await view_task(session, task, limits),
        timeline=timeline,
        trajectory=trajectory,
        ended=task.state in TASK_END_STATES,
        approval=await _approval(session, visit, task),
        feedback=[FeedbackView.of(row) for row in await feedback.of_task(session, task.id)],
        form=form or Form(),
        releases=await releases_to_choose(session, task.project_id),
        again=(await tasks.page(session, tasks.TaskFilter(rerun_of=task.id), limit=10)).items,
    )


async def releases_to_choose(session: AsyncSession, project_id: UUID) -> list[tables.Release]:
    """Those that may do a task again, newest first."""
    return [row for row in await releases.of_project(session, project_id) if row.state in _SERVES]


async def _approval(
    session: AsyncSession, visit: Visit, task: tables.Task
) -> tables.Approval | ApprovalView | None:
    """That it waits for, with all that a decision needs for those who may decide."""
    row = await approvals.waiting(session, task.id) if task.state is tables.TaskState.WAITING else None
    return await view_approval(session, row) if row is not None and visit.allows("approvals") else row


async def _trajectory(session: AsyncSession, task: tables.Task) -> Trajectory | None:
    if task.state not in TASK_END_STATES:
        return None
    try:
        return await results.of_task(session, task.id)
    except NotFoundError:  # it never began, or its trajectory was deleted
        return None


async def _first_prompt(
    session: AsyncSession, task: tables.Task, trajectory: Trajectory | None, tokenizer: ChatTokenizer | None
) -> str | None:
    """What the policy read before its first turn; of a running task, it is in the journal."""
    journal = () if trajectory else await turns.of_task(session, task.id, limit=1)
    first = trajectory.turns[:1] if trajectory else [each.turn for each in journal]
    prompts = await asyncio.to_thread(prompts_of, first, tokenizer)
    return prompts[0] if prompts else None


class _BlockReader:
    """Renders the blocks that events after `position` changed. The events before it are read too, once."""

    def __init__(
        self, sessions: Sessions, visit: Visit, task_id: UUID, position: int, tokenizer: ChatTokenizer | None
    ) -> None:
        self._sessions, self._visit, self._task_id, self._tokenizer = sessions, visit, task_id, tokenizer
        self._position = position  # of the last event that the page shows
        self._timeline = Timeline()

    async def read(self) -> EventBatch:
        async with self._sessions() as session:
            rows = list(await results.after(session, self._task_id, self._timeline.last, BATCH_SIZE))
            task = await session.get(tables.Task, self._task_id, populate_existing=True)
            approval = await _approval(session, self._visit, task) if task else None
            chosen = any(row.kind in _CHOOSE_SKILLS and row.seq > self._position for row in rows)
            found = await skills_of(session, self._task_id) if chosen else None
            changed = {}
            for row in rows:
                block = self._timeline.add(row.seq, row.kind, row.data, row.created_at)
                if row.seq > self._position:
                    changed[block.id] = block
            first = next(iter(self._timeline.turns), None)
            if task is not None and first is not None and first.id in changed:
                trajectory = await _trajectory(session, task)
                first.prompt = await _first_prompt(session, task, trajectory, self._tokenizer)
        ended = task is None or (task.state in TASK_END_STATES and len(rows) < BATCH_SIZE)
        messages = []
        if task is not None and changed:
            self._position = self._timeline.last
            html = render(
                "task_live.html",
                visit=self._visit,
                task=task,
                blocks=[*changed.values()],
                timeline=self._timeline,
                approval=approval,
                found=found,
            )
            messages.append(ServerSentEventMessage(data=html, id=self._position))
        elif len(rows) == BATCH_SIZE:
            return await self.read()
        if ended and messages:
            messages.append(ServerSentEventMessage(data="", event="end", id=self._position))
        return EventBatch(messages, ended=ended)
