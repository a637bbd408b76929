"""When a project trains by itself."""

from datetime import datetime
from typing import Annotated, Self

import msgspec
from litestar import Controller, delete, get, put
from litestar.params import JSONBody

from app.api.access import Caller, Db, find_project
from app.api.problem import problems
from app.api.validation import ProjectName
from app.db import models, schedules
from app.records import Json
from app.run_settings import RunSettings, refuse_hopeless

_READ = problems(400, 401, 403, 404)


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every so many hours, after every so many scored tasks, or whichever of the two comes first."""

    every_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None
    every_scored_tasks: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: RunSettings = RunSettings()
    enabled: bool = True

    def wanted(self) -> schedules.NewSchedule:
        """Raises InvalidError for runs that could only fail."""
        refuse_hopeless(self.settings)
        return schedules.NewSchedule(**msgspec.structs.asdict(self))


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """`next_at` is null where hours do not count, `fired_at` until it has asked for a first run."""

    project: str
    every_hours: float | None
    every_scored_tasks: int | None
    settings: dict[str, Json]
    enabled: bool
    next_at: datetime | None
    fired_at: datetime | None

    @classmethod
    def of(cls, row: models.Schedule, project: str) -> Self:
        columns = {name: getattr(row, name) for name in cls.__struct_fields__ if name != "project"}
        return cls(project=project, **columns)


class ScheduleController(Controller):
    path = "/schedule"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @put(summary="Train by itself", responses=_READ)
    async def put(
        self, data: JSONBody[ScheduleRequest], session: Db, access: Caller, project: ProjectName = None
    ) -> ScheduleView:
        """The project's one schedule, instead of the former. What was counted so far still counts."""
        owner = await find_project(session, access, project)
        row = await schedules.put(session, owner.id, data.wanted())
        await session.commit()
        return ScheduleView.of(row, owner.name)

    @get(summary="Show the schedule", responses=_READ)
    async def show(self, session: Db, access: Caller, project: ProjectName = None) -> ScheduleView:
        """404 where the project trains only when it is asked to."""
        owner = await find_project(session, access, project)
        return ScheduleView.of(await schedules.get(session, owner.id), owner.name)

    @delete(summary="Train only when asked to", responses=_READ)
    async def remove(self, session: Db, access: Caller, project: ProjectName = None) -> None:
        """Runs that it has asked for stay."""
        owner = await find_project(session, access, project)
        await schedules.remove(session, owner.id)
        await session.commit()
