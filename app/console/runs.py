"""Training runs: the list with the schedule, a new one, and what one is started with."""

from typing import Any
from uuid import UUID

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.runs import start_run
from app.base.errors import AppError
from app.console.run_form import choices, entered, groups
from app.datasets.data_location import DataRules
from app.db import learning_outlook, runs, schedules
from app.db.learning_outlook import Serving
from app.run_settings import PRACTICE, RunKind, RunSettings, read_settings
from app.web.access import Db
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page
from app.web.routes import NotifyWorkers

_RUNS = 30


class RunPages(Controller):
    path = "/runs"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(
        self,
        visit: Visitor,
        session: Db,
        serving: NamedDependency[Serving],
        cursor: FromQuery[str | None] = None,
    ) -> Response[str]:
        found = await runs.page(session, visit.project.id, cursor=cursor, limit=_RUNS)
        schedule = await schedules.find(session, visit.project.id)
        progress = await schedules.progress(session, schedule) if schedule is not None else None
        plan = await learning_outlook.outlook(session, schedule, serving) if schedule is not None else None
        return page(visit, "runs.html", found=found, schedule=schedule, due=progress, outlook=plan)

    @get("/new")
    async def ask(
        self,
        visit: Visitor,
        session: Db,
        like: FromQuery[UUID | None] = None,
        exam: FromQuery[str] = "",
        ground: FromQuery[str] = "",
        practice: FromQuery[str] = "",
    ) -> Response[str]:
        """With the settings of another run, or to examine releases on an exam, or to practise on an API."""
        settings = RunSettings()
        if exam:
            on = f"&on={ground}" if ground else ""
            settings = RunSettings(kind=RunKind.EXAM, environment=f"exam?name={exam}{on}")
        if practice:
            settings = RunSettings(kind=RunKind.PRACTICE, environment=f"{PRACTICE}?api={practice}")
        if like is not None:
            settings = read_settings((await runs.get(session, like, visit.access.project_id)).settings)
        return await _form(visit, session, Form(values=entered(settings)))

    @post("/new")
    async def start(
        self,
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        notify_workers: NamedDependency[NotifyWorkers],
        data_rules: NamedDependency[DataRules],
        judged: NamedDependency[bool],
    ) -> Response[Any]:
        form = await read_form(request, RunSettings)
        if form.value is None:
            return await _form(visit, session, form)
        try:
            run = await start_run(
                session, visit.access, visit.project, form.value, notify_workers, data_rules, judged=judged
            )
        except AppError as error:
            return await _form(visit, session, form.refused(error))
        return after_change(visit.url(f"/console/runs/{run.id}"), "the run waits for a worker")


async def _form(visit: Visit, session: AsyncSession, form: Form[RunSettings]) -> Response[str]:
    options = await choices(session, visit.project)
    return page(visit, "run_new.html", form=form, groups=groups(), options=options, status=form.status)
