"""The pages of tasks: finding them and sending one; the timeline of one, live while it runs; what a person does
about it: score it, run it again, cancel it, decide on its call; a task beside its replay; and the feedback that
is wanted.
"""

import asyncio
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response.sse import ServerSentEventMessage
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.action import extract_code
from app.apis.approvals import store as approvals
from app.apis.approvals.routes import DECISIONS, ApprovalView, DecisionRequest, view_approval
from app.apis.documents.reader import DocumentReader
from app.apis.pages import read_callable
from app.base.errors import AppError, InvalidError, NotFoundError
from app.base.fields import MOST, Scenario, Score, Text
from app.base.values import GOOD, Stop, Trajectory
from app.db import results, tables
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.db.tables import TASK_END_STATES, TaskState
from app.engine.tokenizer import ChatTokenizer
from app.projects import statistics
from app.projects.settings import Limits
from app.projects.statistics import Grouping, TimeBucket
from app.releases import store as releases
from app.releases import trials_store
from app.skills import store as skills
from app.tasks import feedback, turns
from app.tasks import store as tasks
from app.tasks.events import Timeline, fold
from app.tasks.feedback import FeedbackRequest, FeedbackView, give_feedback, wanted_feedback
from app.tasks.requests import Rerun, TaskRequest
from app.tasks.routes import search
from app.tasks.submission import MAY_SERVE, repeat, submit_request
from app.tasks.views import ReplayRequest, ask_replay, prompts_of, skills_of, view_replay, view_task
from app.web.access import Db
from app.web.forms import Form, parse_form, read_form
from app.web.pages import Visit, Visitor, after_change, page, render, visit_project
from app.web.problem import AnyRequest
from app.web.sse import BATCH_SIZE, EventBatch, event_stream

_PAGE = 50
_SCENARIOS = 100  # that are suggested
_BELOW = 0.4999999
_MOST_EVENTS = 20_000
_MOST_WANTED = 30  # tasks that want feedback
_CHOOSE_SKILLS = ("skill", "turn")  # events after which others may have been found, offered, used or written

_Comment = Annotated[Text, msgspec.Meta(max_length=10_000)] | None
After = Annotated[int, QueryParameter(ge=0)]
LastEventId = Annotated[str, HeaderParameter(name="Last-Event-ID")]


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of the page, as its form sends them."""

    q: Annotated[Text, msgspec.Meta(max_length=500)] | None = None
    state: TaskState | None = None
    stop: Stop | None = None
    score: Literal["good", "bad"] | None = None
    scenario: Scenario | None = None
    skill: Annotated[Text, msgspec.Meta(max_length=200)] | None = None
    release: Annotated[int, msgspec.Meta(ge=1, le=MOST)] | None = None
    since: date | None = None
    until: date | None = None


class ScoreFields(msgspec.Struct, frozen=True, kw_only=True):
    score: Score
    comment: _Comment = None


class FeedbackFields(ScoreFields, frozen=True, kw_only=True):
    """`turn` counts from 0; without one the comment is about the task."""

    turn: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None


class SettleFields(msgspec.Struct, frozen=True, kw_only=True):
    call: Literal["arrived", "lost"]
    result: Annotated[str, msgspec.Meta(max_length=100_000)] = ""


class TaskPages(Controller):
    path = "/tasks"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        form: Form[TaskQuery] = parse_form(visit.query, TaskQuery)
        found, cursor = list[tables.Task](), None
        if form.value is not None:
            try:
                result = await search(
                    session, await _filter(session, visit, form.value), visit.query.get("cursor"), _PAGE
                )
                found, cursor = result.items, result.cursor
            except AppError as error:
                form = form.refused(error)
        return page(
            visit,
            "tasks.html",
            status=200 if form.value else 400,
            form=form,
            tasks=found,
            cursor=cursor,
            numbers={row.id: row.number for row in await releases.of_project(session, visit.project.id)},
            states=[state.value for state in TaskState],
            stops=[stop.value for stop in Stop],
            scenarios=await _scenarios(session, visit),
        )

    @get("/new")
    async def ask(
        self, visit: Visitor, session: Db, document_reader: NamedDependency[DocumentReader]
    ) -> Response[str]:
        return await _new_page(visit, session, document_reader, Form[TaskRequest]())

    @post()
    async def submit(
        self,
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        limits: NamedDependency[Limits],
        document_reader: NamedDependency[DocumentReader],
    ) -> Response[Any]:
        form = await read_form(request, TaskRequest)
        if form.value is None:
            return await _new_page(visit, session, document_reader, form)
        try:
            task = msgspec.structs.replace(form.value, project=visit.project.name)
            [row] = await submit_request(session, visit.access, task, None, limits)
        except AppError as error:
            return await _new_page(visit, session, document_reader, form.refused(error))
        await session.commit()
        return after_change(
            f"/console/tasks/{row.id}", "The task is queued. What it does shows here as it happens."
        )


async def _filter(session: AsyncSession, visit: Visit, query: TaskQuery) -> tasks.TaskFilter:
    """Raises InvalidError, NotFoundError."""
    owner = visit.project.id
    try:
        release_id = (await releases.numbered(session, owner, query.release)).id if query.release else None
    except NotFoundError as error:
        raise InvalidError(f"release: {error}") from error
    return tasks.TaskFilter(
        project_id=owner,
        words=query.q,
        state=query.state,
        stop=query.stop,
        scenario=query.scenario,
        skill_ids=await _skill_ids(session, owner, query.skill) if query.skill else None,
        release_id=release_id,
        min_score=GOOD if query.score == "good" else None,
        max_score=_BELOW if query.score == "bad" else None,
        created_after=_midnight(query.since),
        created_before=_midnight(query.until and query.until + timedelta(days=1)),
    )


async def _skill_ids(session: AsyncSession, project_id: UUID, text: str) -> list[UUID]:
    """Of an id, or of all versions of a name."""
    try:
        return [(await skills.get(session, UUID(text), project_id)).id]
    except ValueError:
        versions = await skills.versions(session, project_id, text.strip())
    except NotFoundError as error:
        raise InvalidError(f"skill: {error}") from error
    if not versions:
        raise InvalidError(f"skill: none is named {text}")
    return [each.id for each in versions]


def _midnight(day: date | None) -> datetime | None:
    return datetime.combine(day, time(), UTC) if day else None


async def _scenarios(session: AsyncSession, visit: Visit) -> list[str]:
    """Those of the last month, the most frequent first."""
    since = visit.now - timedelta(days=30)
    found = await statistics.of_project(
        session, visit.project.id, Grouping.SCENARIO, since, visit.now, TimeBucket.WEEK, _SCENARIOS
    )
    return list(dict.fromkeys(row.key for row in found.rows if row.key is not None))


async def _new_page(
    visit: Visit, session: AsyncSession, reader: DocumentReader, form: Form[TaskRequest]
) -> Response[str]:
    return page(
        visit,
        "task_new.html",
        status=400 if form.errors or form.error else 200,
        form=form,
        apis=await read_callable(session, visit.project, reader),
        scenarios=await _scenarios(session, visit),
    )


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
    return [row for row in await releases.of_project(session, project_id) if row.state in MAY_SERVE]


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


class TaskChanges(Controller):
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post("/tasks/{task_id:uuid}/feedback")
    async def give(
        self,
        request: AnyRequest,
        task_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        limits: NamedDependency[Limits],
        tokenizer: NamedDependency[ChatTokenizer | None],
    ) -> Response[Any]:
        task = await tasks.get(session, task_id, visit.access.project_id)
        form: Form[FeedbackFields] = await read_form(request, FeedbackFields)
        if form.value is not None:
            data = FeedbackRequest(task_id, form.value.score, form.value.comment, turn=form.value.turn)
            try:
                await give_feedback(session, visit.access, data, request.state["secret"])
                await session.commit()
                return after_change(f"/console/tasks/{task_id}#feedback", "The score is stored.")
            except AppError as error:
                form = form.refused(error)
                await session.rollback()
        visit = await visit_project(visit, session, task.project_id)
        return await task_page(session, visit, task, limits, tokenizer, form)

    @post("/tasks/{task_id:uuid}/rerun")
    async def rerun(
        self,
        request: AnyRequest,
        task_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        limits: NamedDependency[Limits],
    ) -> Response[Any]:
        changes = (await read_form(request, Rerun)).given()
        again = await repeat(session, visit.access, task_id, changes, None, limits)
        await session.commit()
        by = f" Release {changes.release} will do it." if changes.release else ""
        return after_change(f"/console/tasks/{again.id}", f"The task is queued again, as this new one.{by}")

    @post("/tasks/{task_id:uuid}/cancel")
    async def cancel(self, task_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        await tasks.request_cancel(session, task_id, visit.access.project_id)
        await session.commit()
        return after_change(f"/console/tasks/{task_id}", "The task is cancelled.")

    @post("/tasks/{task_id:uuid}/settle")
    async def settle(
        self, request: AnyRequest, task_id: FromPath[UUID], visit: Visitor, session: Db
    ) -> Response[Any]:
        found = (await read_form(request, SettleFields)).given()
        arrived = found.call == "arrived"
        try:
            result = msgspec.json.decode(found.result) if arrived and found.result else None
        except msgspec.DecodeError as error:
            raise InvalidError(f"result: it is not JSON: {error}") from error
        owner, actor = visit.access.project_id, visit.access.actor
        await tasks.settle(session, task_id, owner, actor, arrived=arrived, result=result)
        await session.commit()
        return after_change(f"/console/tasks/{task_id}", "The task goes on.")

    @post("/tasks/{task_id:uuid}/approvals/{approval_id:uuid}", opt={"scope": "approvals"})
    async def decide(
        self,
        request: AnyRequest,
        task_id: FromPath[UUID],  # noqa: ARG002  of the page that it is decided on
        approval_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
    ) -> Response[Any]:
        data = (await read_form(request, DecisionRequest)).given()
        row = await approvals.get(session, approval_id, visit.access.project_id)
        state = DECISIONS[data.decision]
        await approvals.decide(session, row, state, visit.access.actor, data.reason)
        await session.commit()
        return after_change(f"/console/tasks/{row.task_id}", f"{row.api} is {state.value}; the task goes on.")


class ReplayPages(Controller):
    path = "/tasks/{task_id:uuid}/replay"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post()
    async def ask(
        self, request: AnyRequest, task_id: FromPath[UUID], visit: Visitor, session: Db
    ) -> Response[Any]:
        task = await tasks.get(session, task_id, visit.access.project_id)
        form = await read_form(request, ReplayRequest)
        if form.value is None:
            raise InvalidError("release: choose the number of a release")
        release, _ = await ask_replay(session, task, form.value.release)
        await session.commit()
        text = f"Release {release.number} does the task again. No call goes out."
        return after_change(f"/console/tasks/{task_id}/replay?release={release.number}", text)

    @get()
    async def show(
        self,
        task_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        release: Annotated[int | None, QueryParameter(ge=1, le=MOST)] = None,
    ) -> Response[str]:
        """Without a release, the choice of one."""
        task = await tasks.get(session, task_id, visit.access.project_id)
        if release is None:
            visit = await visit_project(visit, session, task.project_id)
            choices = await releases_to_choose(session, task.project_id)
            ended = task.state in TASK_END_STATES
            return page(visit, "task_replay_choice.html", task=task, releases=choices, ended=ended)
        by = await releases.numbered(session, task.project_id, release)
        replay = await trials_store.replay(session, by.id, task.id)
        view = await view_replay(session, task, by, replay) if replay else None
        visit = await visit_project(visit, session, task.project_id)
        return page(visit, "task_replay.html", task=task, release=by, view=view, code_of=extract_code)


class FeedbackPages(Controller):
    path = "/feedback"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        owner = visit.project.id
        wanted = await wanted_feedback(session, owner, _MOST_WANTED)
        failed = await statistics.count_failed(session, owner)
        return page(visit, "feedback.html", wanted=wanted, failed=failed)

    @post("/{task_id:uuid}")
    async def give(
        self, task_id: FromPath[UUID], request: AnyRequest, visit: Visitor, session: Db
    ) -> Response[Any]:
        task = await tasks.get(session, task_id, visit.access.project_id)
        visit = await visit_project(visit, session, task.project_id)
        entered = (await read_form(request, ScoreFields)).given()
        given = FeedbackRequest(task_id=task_id, score=entered.score, comment=entered.comment)
        await give_feedback(session, visit.access, given, request.state["secret"])
        await session.commit()
        return after_change(visit.url("/console/feedback"), "stored the score")
