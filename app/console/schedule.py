"""The training schedule of a project."""

from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.schedule import put_schedule, remove_schedule
from app.base.errors import AppError
from app.console.run_form import choices, entered, groups
from app.datasets.data_location import DataRules
from app.db import learning_outlook, schedules
from app.db.learning_outlook import Serving
from app.run_settings import RunSettings, read_settings
from app.web.access import Db
from app.web.forms import Form, parse_form
from app.web.pages import Visit, Visitor, after_change, page


class ScheduleFields(msgspec.Struct, frozen=True):
    every_hours: float | None = None
    every_scored_tasks: int | None = None
    enabled: bool = True


class SchedulePages(Controller):
    path = "/runs/schedule"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def show(self, visit: Visitor, session: Db, serving: NamedDependency[Serving]) -> Response[str]:
        row = await schedules.find(session, visit.project.id)
        settings = read_settings(row.settings) if row else RunSettings()
        own = ScheduleFields(row.every_hours, row.every_scored_tasks, row.enabled) if row else ScheduleFields()
        shown = {name: _text(value) for name, value in msgspec.structs.asdict(own).items()}
        return await _form(visit, session, serving, Form(values=entered(settings) | shown))

    @post()
    async def store(
        self,
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        data_rules: NamedDependency[DataRules],
        serving: NamedDependency[Serving],
    ) -> Response[Any]:
        values = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        own, settings = parse_form(values, ScheduleFields), parse_form(values, RunSettings)
        form: Form[Any] = msgspec.structs.replace(
            settings,
            values={**settings.values, **own.values},
            errors={**settings.errors, **own.errors},
            status=max(own.status, settings.status),
        )
        if own.value is None or settings.value is None:
            return await _form(visit, session, serving, form)
        new = schedules.NewSchedule(**msgspec.structs.asdict(own.value), settings=settings.value)
        try:
            await put_schedule(session, visit.access, visit.project, new, data_rules)
        except AppError as error:
            return await _form(visit, session, serving, form.refused(error))
        return after_change(visit.url("/console/runs"), "stored the schedule")

    @post("/delete")
    async def delete(self, visit: Visitor, session: Db) -> Redirect:
        await remove_schedule(session, visit.access, visit.project)
        return after_change(visit.url("/console/runs"), "deleted the schedule; runs that it has queued remain")


def _text(value: object) -> str:
    """
    >>> _text(True), _text(24.0), _text(None)
    ('true', '24', '')
    """
    if value is None:
        return ""
    return f"{value}".lower() if isinstance(value, bool) else f"{value:g}"


async def _form(visit: Visit, session: AsyncSession, serving: Serving, form: Form[Any]) -> Response[str]:
    row = await schedules.find(session, visit.project.id)
    return page(
        visit,
        "schedule.html",
        form=form,
        groups=groups(),
        options=await choices(session, visit.project),
        row=row,
        outlook=await learning_outlook.outlook(session, row, serving) if row is not None else None,
        status=form.status,
    )
