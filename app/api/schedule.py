"""Routes for the training schedule of a project."""

from datetime import datetime
from typing import Annotated, Self

import msgspec
from litestar import Controller, delete, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.datasets import check_data
from app.api.environments import refuse_unknown
from app.api.practice_estimate import check_practised_api
from app.base.values import Json
from app.datasets.data_location import DataRules
from app.db import schedules, tables
from app.db.learning_outlook import Serving, outlook
from app.projects import audit
from app.projects.authorization import find_project
from app.run_settings import RunSettings, check_runnable
from app.web.access import Access, Caller, Db
from app.web.fields import ConsoleLinks, ProjectName, columns
from app.web.problem import problems

_READ = problems(400, 401, 403, 404)


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train every `every_hours` hours or `every_scored_tasks` newly scored tasks, whichever comes first."""

    every_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None
    every_scored_tasks: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: RunSettings = RunSettings()
    enabled: bool = True

    def schedule(self) -> schedules.NewSchedule:
        return schedules.NewSchedule(**msgspec.structs.asdict(self))


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """`next_run_at` is null without `every_hours`, `last_run_at` until the schedule has queued its first run.

    `scored_tasks` are those that people or checks have scored since that run. While the release
    `waits_for_release` is on trial, no run begins: what it made would be compared with weights that no longer
    serve when its turn comes.
    """

    project: str
    every_hours: float | None
    every_scored_tasks: int | None
    settings: dict[str, Json]
    enabled: bool
    next_at: datetime | None = msgspec.field(name="next_run_at")
    fired_at: datetime | None = msgspec.field(name="last_run_at")
    scored_tasks: int
    waits_for_release: int | None
    scored_last_week: int  #: tasks that ended in the last 7 days and were scored by other than a judge
    scores_per_week: int  #: that runs can learn from, at this pace: those of tasks sampled at temperature 1
    problems: list[str]  #: each keeps runs from learning anything, and says what to set
    links: ConsoleLinks

    @classmethod
    async def of(cls, session: AsyncSession, row: tables.Schedule, project: str, serving: Serving) -> Self:
        progress = msgspec.structs.asdict(await schedules.progress(session, row))
        progress |= msgspec.structs.asdict(await outlook(session, row, serving))
        links = ConsoleLinks.to("/console/runs/schedule", project)
        return cls(project=project, links=links, **progress, **columns(row, cls, "project", "links", *progress))


class ScheduleController(Controller):
    path = "/schedule"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @put(summary="Set the schedule", responses=_READ)
    async def put(
        self,
        data: JSONBody[ScheduleRequest],
        session: Db,
        access: Caller,
        data_rules: NamedDependency[DataRules],
        serving: NamedDependency[Serving],
        project: ProjectName = None,
    ) -> ScheduleView:
        """Replaces the schedule of the project. Tasks scored since the last run still count."""
        owner = await find_project(session, access, project)
        row = await put_schedule(session, access, owner, data.schedule(), data_rules)
        return await ScheduleView.of(session, row, owner.name, serving)

    @get(summary="Show the schedule", responses=_READ)
    async def show(
        self, session: Db, access: Caller, serving: NamedDependency[Serving], project: ProjectName = None
    ) -> ScheduleView:
        """404 if the project has no schedule."""
        owner = await find_project(session, access, project)
        return await ScheduleView.of(session, await schedules.get(session, owner.id), owner.name, serving)

    @delete(summary="Delete the schedule", responses=_READ)
    async def remove(self, session: Db, access: Caller, project: ProjectName = None) -> None:
        """Runs that it has queued remain."""
        owner = await find_project(session, access, project)
        await remove_schedule(session, access, owner)


async def put_schedule(
    session: AsyncSession,
    access: Access,
    project: tables.Project,
    new: schedules.NewSchedule,
    data_rules: DataRules,
) -> tables.Schedule:
    """Set the schedule of a project, and commit. Raises InvalidError, and NotFoundError for a dataset."""
    check_runnable(new.settings)
    await refuse_unknown(session, new.settings)
    await check_practised_api(session, project, new.settings)
    await check_data(session, access, project, new.settings, data_rules)
    row = await schedules.put(session, project.id, new)
    detail = msgspec.to_builtins(new)
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.SCHEDULE_CHANGED, detail)
    await session.commit()
    return row


async def remove_schedule(session: AsyncSession, access: Access, project: tables.Project) -> None:
    """Delete the schedule of a project, and commit. Raises NotFoundError."""
    await schedules.remove(session, project.id)
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.SCHEDULE_DELETED, {})
    await session.commit()
