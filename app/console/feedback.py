"""Feedback that is wanted: the tasks without a score whose score would teach most, to be scored in place."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.params import FromPath

from app.api.feedback import FeedbackRequest, give_feedback, wanted_feedback
from app.db import tasks
from app.projects import statistics
from app.web.access import Db
from app.web.fields import Score
from app.web.forms import read_form
from app.web.pages import Visitor, after_change, page, visit_project

_TASKS = 30


class ScoreFields(msgspec.Struct, frozen=True):
    score: Score
    comment: Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$")] | None = None


class FeedbackPages(Controller):
    path = "/feedback"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        owner = visit.project.id
        wanted = await wanted_feedback(session, owner, _TASKS)
        failed = await statistics.count_failed(session, owner)
        return page(visit, "feedback.html", wanted=wanted, failed=failed)

    @post("/{task_id:uuid}")
    async def give(
        self, task_id: FromPath[UUID], request: Request[Any, Any, Any], visit: Visitor, session: Db
    ) -> Response[Any]:
        task = await tasks.get(session, task_id, visit.access.project_id)
        visit = await visit_project(visit, session, task.project_id)
        entered = (await read_form(request, ScoreFields)).given()
        given = FeedbackRequest(task_id=task_id, score=entered.score, comment=entered.comment)
        await give_feedback(session, visit.access, given, request.state["secret"])
        await session.commit()
        return after_change(visit.url("/console/feedback"), "stored the score")
