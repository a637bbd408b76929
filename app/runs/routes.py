"""Routes for training runs."""

from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, MediaType, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.datasets import check_data
from app.api.environments import refuse_unknown
from app.api.practice_estimate import check_practised_api, estimate
from app.api.run_view import RunPage, RunSummary, RunView, StepView
from app.api.served_experience import check_experience
from app.base.errors import NotFoundError
from app.datasets.data_location import DataRules
from app.db import run_logs, runs, tables
from app.db.learning_outlook import Serving
from app.db.tables import AuditAction
from app.projects import audit
from app.projects.authorization import find_project, project_names
from app.run_settings import RunKind, RunSettings, check_runnable
from app.web.access import Access, Caller, Db
from app.web.fields import Cursor, Limit, ProjectName
from app.web.problem import problems
from app.web.routes import NotifyWorkers

After = Annotated[int, QueryParameter(ge=0, le=2**31 - 1, description="only steps after this number")]
StepLimit = Annotated[int, QueryParameter(ge=1, le=1000, description="maximum number of steps")]
_READ = problems(400, 401, 403, 404)
_MOVE = problems(400, 401, 403, 404, 409)


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kind` can be given here or in `settings`; this one takes precedence."""

    project: str | None = None
    kind: RunKind | UnsetType = UNSET
    settings: RunSettings = RunSettings()

    def merged_settings(self) -> RunSettings:
        """Raises InvalidError for settings that could only fail."""
        kind = self.settings.kind if self.kind is UNSET else self.kind
        settings = msgspec.structs.replace(self.settings, kind=kind)
        check_runnable(settings)
        return settings


class RunController(Controller):
    path = "/training-runs"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(status_code=202, summary="Start a training run", responses=_READ)
    async def create(
        self,
        data: JSONBody[RunRequest],
        session: Db,
        access: Caller,
        notify_workers: NamedDependency[NotifyWorkers],
        data_rules: NamedDependency[DataRules],
        judged: NamedDependency[bool],
        serving: NamedDependency[Serving],
    ) -> RunView:
        """Queues the run for a worker. The runs of a project are executed one at a time, in order. A run that
        would have too little to learn from is refused, with how much there is and how much it needs."""
        project = await find_project(session, access, data.project)
        settings = data.merged_settings()
        run = await start_run(session, access, project, settings, notify_workers, data_rules, judged=judged)
        return await _view(session, run, serving)

    @get(summary="List training runs", responses=_READ)
    async def index(
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        in_state: Annotated[tables.RunState | None, QueryParameter(name="state")] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> RunPage:
        """Newest first."""
        owner = await find_project(session, access, project)
        page = await runs.page(session, owner.id, state=in_state, cursor=cursor, limit=limit)
        return RunPage([RunSummary.of(row, owner.name) for row in page.items], page.cursor)

    @get("/{run_id:uuid}", summary="Show a training run", responses=_READ)
    async def show(
        self, run_id: FromPath[UUID], session: Db, access: Caller, serving: NamedDependency[Serving]
    ) -> RunView:
        """Its state and progress, the metrics of its last step, and its result."""
        return await _view(session, await _find(session, access, run_id), serving)

    @get("/{run_id:uuid}/steps", summary="List the metrics of each step", responses=_READ)
    async def steps(
        self, run_id: FromPath[UUID], session: Db, access: Caller, after: After = 0, limit: StepLimit = 1000
    ) -> list[StepView]:
        """In order of the steps."""
        run = await _find(session, access, run_id)
        return [StepView.of(row) for row in await runs.steps(session, run.id, after, limit)]

    @get(
        "/{run_id:uuid}/log", summary="Show the log of a training run", responses=_READ, media_type=MediaType.TEXT
    )
    async def log(self, run_id: FromPath[UUID], session: Db, access: Caller) -> str:
        """Its last 64 KiB, some seconds old while it runs. 404 until it begins."""
        run = await _find(session, access, run_id)
        text = await run_logs.read(session, run.id)
        if text is None:
            raise NotFoundError("this run has no log yet: it has not begun")
        return text

    @post("/{run_id:uuid}/cancel", status_code=202, summary="Cancel a training run", responses=_MOVE)
    async def cancel(
        self, run_id: FromPath[UUID], session: Db, access: Caller, serving: NamedDependency[Serving]
    ) -> RunView:
        """A queued run is cancelled immediately, a running one within seconds. 409 if it has ended."""
        await _find(session, access, run_id)
        return await _view(session, await cancel_run(session, access, run_id), serving)

    @post("/{run_id:uuid}/retry", status_code=202, summary="Retry a training run", responses=_MOVE)
    async def retry(
        self,
        run_id: FromPath[UUID],
        session: Db,
        access: Caller,
        notify_workers: NamedDependency[NotifyWorkers],
        serving: NamedDependency[Serving],
    ) -> RunView:
        """Queues it again; it resumes from its last checkpoint. 409 unless it failed or was cancelled."""
        await _find(session, access, run_id)
        return await _view(session, await retry_run(session, access, run_id, notify_workers), serving)


async def start_run(
    session: AsyncSession,
    access: Access,
    project: tables.Project,
    settings: RunSettings,
    notify_workers: NotifyWorkers,
    data_rules: DataRules,
    *,
    judged: bool,
) -> tables.TrainingRun:
    """Queue a run, and commit. Raises InvalidError for one that could only fail, and NotFoundError."""
    check_runnable(settings)
    await refuse_unknown(session, settings)
    await check_practised_api(session, project, settings)
    await check_data(session, access, project, settings, data_rules)
    await check_experience(session, project, settings, judged=judged)
    run = await runs.create(session, project.id, settings)
    await _audit(session, access, run, AuditAction.RUN_QUEUED)
    await session.commit()
    await notify_workers(run.id)
    return run


async def retry_run(
    session: AsyncSession, access: Access, run_id: UUID, notify_workers: NotifyWorkers
) -> tables.TrainingRun:
    """Queue it again, and commit. Raises ConflictError unless it failed or was cancelled."""
    run = await runs.retry(session, run_id)
    await _audit(session, access, run, AuditAction.RUN_RETRIED)
    await session.commit()
    await notify_workers(run.id)
    return run


async def cancel_run(session: AsyncSession, access: Access, run_id: UUID) -> tables.TrainingRun:
    """Cancel it at once if it waits, or else within seconds, and commit. Raises ConflictError if it has ended."""
    run = await runs.request_cancel(session, run_id)
    await _audit(session, access, run, AuditAction.RUN_CANCELLED)
    await session.commit()
    return run


async def _audit(session: AsyncSession, access: Access, run: tables.TrainingRun, action: AuditAction) -> None:
    await audit.add(session, run.project_id, None, access.actor, action, {"run": str(run.id)})


async def _find(session: AsyncSession, access: Access, run_id: UUID) -> tables.TrainingRun:
    return await runs.get(session, run_id, access.project_id)


async def _view(session: AsyncSession, run: tables.TrainingRun, serving: Serving) -> RunView:
    names = await project_names(session)
    last = await runs.steps(session, run.id, run.step - 1, limit=1)
    buys = await estimate(session, run, serving)
    return RunView.full(run, names[run.project_id], last[0] if last else None, buys)
