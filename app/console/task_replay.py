"""A task beside its replay: another release does it again on recorded calls."""

from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.params import FromPath, QueryParameter

from app.agent.action import extract_code
from app.api.replays import ask_replay, view_replay
from app.base.errors import InvalidError
from app.console.task import releases_to_choose
from app.db import tasks
from app.db.tables import TASK_END_STATES
from app.releases import store as releases
from app.releases import trials_store
from app.web.access import Db
from app.web.forms import read_form
from app.web.pages import Visitor, after_change, page, visit_project

Number = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class ReplayFields(msgspec.Struct, frozen=True):
    release: Number


class ReplayPages(Controller):
    path = "/tasks/{task_id:uuid}/replay"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post()
    async def ask(
        self, request: Request[Any, Any, Any], task_id: FromPath[UUID], visit: Visitor, session: Db
    ) -> Response[Any]:
        task = await tasks.get(session, task_id, visit.access.project_id)
        form = await read_form(request, ReplayFields)
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
        release: Annotated[int | None, QueryParameter(ge=1, le=2**31 - 1)] = None,
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
