"""What a person does about a task: score it, run it again, cancel it, decide on its call."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from app.api.feedback import FeedbackRequest, give_feedback
from app.api.rerun import Rerun, repeat
from app.api.tasks import cancel_task
from app.apis.approvals import store as approvals
from app.apis.approvals.routes import DECISIONS, DecisionRequest
from app.base.errors import AppError, InvalidError
from app.console.task import task_page
from app.db import doubts, tasks
from app.engine.tokenizer import ChatTokenizer
from app.projects.settings import Limits
from app.web.access import Db
from app.web.forms import Form, read_form
from app.web.pages import Visitor, after_change, visit_project

_AnyRequest = Request[Any, Any, Any]


class FeedbackFields(msgspec.Struct, frozen=True, kw_only=True):
    """`turn` counts from 0; without one the comment is about the task."""

    score: Annotated[float, msgspec.Meta(ge=0, le=1)]
    comment: Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$")] | None = None
    turn: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None


class RerunFields(msgspec.Struct, frozen=True, kw_only=True):
    release: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


class SettleFields(msgspec.Struct, frozen=True, kw_only=True):
    call: Literal["arrived", "lost"]
    result: Annotated[str, msgspec.Meta(max_length=100_000)] = ""


class TaskChanges(Controller):
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post("/tasks/{task_id:uuid}/feedback")
    async def give(
        self,
        request: _AnyRequest,
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
        request: _AnyRequest,
        task_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        limits: NamedDependency[Limits],
    ) -> Response[Any]:
        number = (await read_form(request, RerunFields)).given().release
        changes = Rerun() if number is None else Rerun(release=number)
        again = await repeat(session, visit.access, task_id, changes, None, limits)
        await session.commit()
        by = f" Release {number} will do it." if number else ""
        return after_change(f"/console/tasks/{again.id}", f"The task is queued again, as this new one.{by}")

    @post("/tasks/{task_id:uuid}/cancel")
    async def cancel(self, task_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        await cancel_task(session, visit.access, task_id)
        await session.commit()
        return after_change(f"/console/tasks/{task_id}", "The task is cancelled.")

    @post("/tasks/{task_id:uuid}/settle")
    async def settle(
        self, request: _AnyRequest, task_id: FromPath[UUID], visit: Visitor, session: Db
    ) -> Response[Any]:
        await tasks.get(session, task_id, visit.access.project_id)
        found = (await read_form(request, SettleFields)).given()
        arrived = found.call == "arrived"
        try:
            result = msgspec.json.decode(found.result) if arrived and found.result else None
        except msgspec.DecodeError as error:
            raise InvalidError(f"result: it is not JSON: {error}") from error
        await doubts.settle(session, task_id, visit.access.actor, arrived=arrived, result=result)
        await session.commit()
        return after_change(f"/console/tasks/{task_id}", "The task goes on.")

    @post("/tasks/{task_id:uuid}/approvals/{approval_id:uuid}", opt={"scope": "approvals"})
    async def decide(
        self,
        request: _AnyRequest,
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
