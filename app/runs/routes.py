"""Routes for training runs and their events, for the schedule, for datasets and for the workers' environments."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID, uuid4

import msgspec
from litestar import Controller, MediaType, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.fields import MOST, columns
from app.base.plugins import check_environment
from app.base.run_settings import RunKind, RunSettings, check_runnable
from app.base.values import Json, RunPart
from app.db import tables
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.db.tables import OPEN_RUNS, AuditAction, RunState
from app.projects import audit
from app.projects import store as projects
from app.projects.authorization import find_project, project_filter, project_names
from app.projects.settings import Limits
from app.runs import datasets as dataset_table
from app.runs import schedule
from app.runs import store as runs
from app.runs.broker import NotifyWorkers
from app.runs.datasets import DataRules, DatasetStore, IncomingDataset, check_location, dataset_id_of, incoming
from app.runs.experience import check_experience
from app.runs.practice import check_practised_api, estimate
from app.runs.schedule import ScheduleRequest, Serving, outlook
from app.web.access import ANY_KEY, Access, Caller, Db
from app.web.fields import ConsoleLinks, Cursor, LastEventId, Limit, ProjectName, console_path
from app.web.problem import CHANGE, READ, AnyRequest, problems
from app.web.sse import BATCH_SIZE, EventBatch, event_stream, message, stream_specs

DatasetName = Annotated[str, QueryParameter(max_length=200, pattern=r"^[^\x00]*$", description="for people")]
_DONE_ID = MOST
_STREAM = stream_specs(
    "`event` is state (queued, running), step, part or done; `data` is JSON: the metrics of a step, how much is "
    "done of what the run does now (rollouts, exam tasks) and since when, otherwise the run. "
    "The `id` of a step is its number: to resume, send the last one as `Last-Event-ID`. The `id` of done is the "
    "largest. "
    "A run that resumes from its checkpoint repeats steps."
)
After = Annotated[int, QueryParameter(ge=0, le=2**31 - 1, description="only steps after this number")]
StepLimit = Annotated[int, QueryParameter(ge=1, le=1000, description="maximum number of steps")]


class EnvironmentView(msgspec.Struct, frozen=True):
    """`options` is the JSON schema of an object whose properties are the environment's options."""

    name: str
    version: str
    options: dict[str, Json]


class EnvironmentController(Controller):
    path = "/environments"
    tags = ("Training",)
    opt = {"scope": ANY_KEY}  # noqa: RUF012

    @get(summary="List environments", responses=problems(401))
    async def index(self, session: Db) -> list[EnvironmentView]:
        """Those that live workers have reported; empty until the first one has. A setting names one as
        `name?option=value&option=value`.
        """
        found = await runs.installed(session)
        return [EnvironmentView(each.name, each.version, each.options) for each in found]


class DatasetView(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` is the sha256 of the content, in hex."""

    id: UUID
    project: str
    name: str
    digest: str
    bytes: int
    conversations: int
    created_at: datetime

    @classmethod
    def of(cls, row: tables.Dataset, project: str) -> "DatasetView":
        return DatasetView(project=project, **columns(row, DatasetView, "project"))


class DatasetPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    datasets: list[DatasetView]
    next_cursor: str | None


class DatasetController(Controller):
    path = "/datasets"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(summary="Upload a dataset", request_max_body_size=None, responses=problems(400, 401, 403, 404, 409, 507))
    async def upload(  # noqa: PLR0913 - dependencies
        self,
        request: AnyRequest,
        access: Caller,
        sessions: NamedDependency[Sessions],
        datasets: NamedDependency[DatasetStore],
        data_rules: NamedDependency[DataRules],
        limits: NamedDependency[Limits],
        project: ProjectName = None,
        name: DatasetName = "",
    ) -> DatasetView:
        """The body is a file of conversations: one JSON object with `messages` per line. It is validated as it
        arrives, and never changes. The same content again is the same dataset.
        """
        async with sessions() as session:  # none is held during the upload
            owner = await find_project(session, access, project)
        with datasets.uploading(owner.id):
            async with incoming(datasets.local, data_rules.max_bytes) as received:
                await received.receive(request.stream())
                row = await _store(sessions, access, datasets, owner, received, name, limits)
        return DatasetView.of(row, owner.name)

    @get(summary="List datasets", responses=READ)
    async def index(
        self, session: Db, access: Caller, project: ProjectName = None, cursor: Cursor = None, limit: Limit = 50
    ) -> DatasetPage:
        """Newest first."""
        only = await project_filter(session, access, project)
        page = await dataset_table.page(session, only, cursor=cursor, limit=limit)
        names = await project_names(session)
        return DatasetPage([DatasetView.of(row, names[row.project_id]) for row in page.items], page.cursor)

    @get("/{dataset_id:uuid}", summary="Show a dataset", responses=READ)
    async def show(self, dataset_id: FromPath[UUID], session: Db, access: Caller) -> DatasetView:
        row = await dataset_table.get(session, dataset_id, access.project_id)
        return DatasetView.of(row, (await projects.by_id(session, row.project_id)).name)

    @delete("/{dataset_id:uuid}", summary="Delete a dataset", responses=problems(400, 401, 403, 404, 507))
    async def remove(
        self, dataset_id: FromPath[UUID], session: Db, access: Caller, datasets: NamedDependency[DatasetStore]
    ) -> None:
        """A queued run that names it will fail; one that has started has a copy."""
        row = await dataset_table.get(session, dataset_id, access.project_id)
        await dataset_table.delete(session, row.id)
        await _audit(session, access, row, tables.AuditAction.DATASET_DELETED)
        await session.commit()
        await datasets.delete(dataset_id)


async def _audit(session: AsyncSession, access: Access, row: tables.Dataset, action: tables.AuditAction) -> None:
    detail: dict[str, Json] = {"dataset": str(row.id), "name": row.name, "digest": row.digest}
    await audit.add(session, row.project_id, None, access.actor, action, detail)


async def _store(
    sessions: Sessions,
    access: Access,
    datasets: DatasetStore,
    project: tables.Project,
    received: IncomingDataset,
    name: str,
    limits: Limits,
) -> tables.Dataset:
    """The file first, then its row: every row has a file."""
    new = tables.Dataset(
        id=uuid4(),
        project_id=project.id,
        name=name,
        digest=received.digest,
        bytes=received.bytes,
        conversations=received.conversations,
    )
    await datasets.put(new.id, received.path)
    stored = None
    try:
        async with sessions.begin() as session:
            used = await dataset_table.stored_bytes(session, project.id)
            row = await dataset_table.add(session, new)
            most = projects.settings_of(project).limits.over(limits).dataset_bytes
            if row.id == new.id and most is not None and used + new.bytes > most:
                raise ConflictError(
                    f"the datasets of {project.name} would have more than {most:,} bytes: delete some, or ask an "
                    "administrator to raise limits.dataset_bytes of the project, or SAGE_LIMIT_DATASET_BYTES"
                )
            if row.id == new.id:
                await _audit(session, access, row, tables.AuditAction.DATASET_STORED)
        stored = row.id
        return row
    finally:
        if stored != new.id:
            await datasets.delete(new.id)


class RunLinks(msgspec.Struct, frozen=True):
    """Related resources."""

    self: str
    steps: str
    events: str
    console: str

    @classmethod
    def of(cls, run_id: UUID) -> Self:
        own = f"/v1/training-runs/{run_id}"
        return cls(own, f"{own}/steps", f"{own}/events", console_path("runs", run_id))


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list. `step` of `steps` are done; `steps` is 0 while it is unknown. `part` is what it does now,
    if that is counted.
    """

    id: UUID
    project: str
    kind: RunKind
    state: tables.RunState
    step: int
    steps: int
    part: RunPart | None
    failure: str | None  #: "InvalidError: what is wrong, and what to do"
    cancel_requested: bool
    attempt: int
    schedule_id: UUID | None  #: of the schedule that queued it
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, run: tables.TrainingRun, project: str) -> "RunSummary":
        return RunSummary(project=project, **columns(run, RunSummary, "project"))


class RunPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    runs: list[RunSummary]
    next_cursor: str | None


class StepView(msgspec.Struct, frozen=True):
    """The metrics of one step. Steps are numbered from 1."""

    index: int
    metrics: dict[str, Json]
    created_at: datetime

    @classmethod
    def of(cls, row: tables.RunStep) -> Self:
        return cls(**columns(row, cls))


class RunUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """How far the steps of a run may take the policy.

    `lr` is the learning rate in force: that of the run's `setting`, or else what its `model` or, for `sft`, its
    `kind` has (`lr_from`), and then null until the run learns.
    """

    lr: float | None
    lr_from: Literal["setting", "model", "kind"]
    max_kl: float | None  #: nats a token that a step may lead from the policy that sampled; 0: any; null: `sft`

    @classmethod
    def of(cls, run: tables.TrainingRun) -> Self | None:
        """None for a run that trains nothing."""
        if run.kind is RunKind.EXAM:
            return None
        supervised, own = run.kind is RunKind.SFT, run.settings.get("lr") or None
        source: Literal["model", "kind"] = "kind" if supervised else "model"
        return cls(
            lr=own or run.learning_rate,
            lr_from="setting" if own else source,
            max_kl=None if supervised else run.settings.get("max_kl", RunSettings().max_kl),
        )


class RunView(RunSummary, frozen=True, kw_only=True):
    """A run with its settings, the metrics of its last step, and its result: adapter, release, decision, and the
    `evidence` of the gate. That of a run of kind `exam` has the `releases`, each with its `figures` and the
    `difference` to the active one, which comes first.
    """

    settings: dict[str, Json]
    estimate: str | None  #: of kind `practice`, until it has ended: what its hours buy
    update: RunUpdate | None  #: null for kind `exam`
    last_step: StepView | None
    result: dict[str, Json] | None
    links: RunLinks

    @classmethod
    def full(
        cls,
        run: tables.TrainingRun,
        project: str,
        last_step: tables.RunStep | None = None,
        estimate: str | None = None,
    ) -> "RunView":
        return RunView(
            project=project,
            settings=run.settings,
            estimate=estimate,
            update=RunUpdate.of(run),
            last_step=StepView.of(last_step) if last_step else None,
            result=run.result,
            links=RunLinks.of(run.id),
            **columns(run, RunSummary, "project"),
        )


class RunEventsController(Controller):
    path = "/training-runs/{run_id:uuid}/events"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(
        summary="Stream the events of a training run",
        media_type="text/event-stream",
        responses={**_STREAM, **READ},
    )
    async def events(
        self,
        run_id: FromPath[UUID],
        access: Caller,
        sessions: NamedDependency[Sessions],
        listener: NamedDependency[NotificationListener],
        last_event_id: LastEventId = 0,
    ) -> Response[Any]:
        """Its state and the steps so far, then new ones as they happen, up to `done`."""
        async with sessions() as session:
            run = await runs.get(session, run_id, access.project_id)
            project = (await project_names(session))[run.project_id]
        reader = _RunReader(sessions, run.id, project, last_event_id)
        return await event_stream(listener, run.id, access, reader.read)


class _RunReader:
    def __init__(self, sessions: Sessions, run_id: UUID, project: str, position: int) -> None:
        self._sessions = sessions
        self._run_id = run_id
        self._project = project
        self._position = position  # the last step sent
        self._part: dict[str, Json] | None = None  # the last one sent
        self._saw_done = position == _DONE_ID
        self._attempt: tuple[RunState, int] | None = None  # the last state sent, and of which attempt

    async def read(self) -> EventBatch:
        try:
            run, steps = await self._load()
        except NotFoundError:  # it was deleted
            return EventBatch([], ended=True)
        messages = []
        if run.state in OPEN_RUNS and self._attempt != (run.state, run.attempt):
            self._attempt = run.state, run.attempt
            messages.append(message("state", RunView.full(run, self._project)))
        messages += [message("step", StepView.of(row), row.index) for row in steps]
        if run.part is not None and run.part != self._part:
            self._part = run.part
            messages.append(message("part", run.part))
        self._position = steps[-1].index if steps else min(self._position, run.step)
        ended = not steps and run.state not in OPEN_RUNS
        if ended and not self._saw_done:
            messages.append(message("done", RunView.full(run, self._project), _DONE_ID))
        return EventBatch(messages, ended)

    async def _load(self) -> tuple[tables.TrainingRun, list[tables.RunStep]]:
        """The run first: once it has ended, all of its steps are stored."""
        async with self._sessions() as session:
            run = await runs.get(session, self._run_id)
            if self._saw_done and run.state not in OPEN_RUNS:
                return run, []
            resumed = self._position > run.step  # from its checkpoint
            after = run.step - 1 if resumed else self._position
            return run, list(await runs.steps(session, self._run_id, after, BATCH_SIZE))


class RunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`kind` can be given here or in `settings`; this one takes precedence."""

    project: str | None = None
    kind: RunKind | UnsetType = UNSET
    settings: RunSettings = RunSettings()


class RunController(Controller):
    path = "/training-runs"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(status_code=202, summary="Start a training run", responses=READ)
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
        settings = data.settings
        if data.kind is not UNSET:
            settings = msgspec.structs.replace(settings, kind=data.kind)
        run = await start_run(session, access, project, settings, notify_workers, data_rules, judged=judged)
        return await _view(session, run, serving)

    @get(summary="List training runs", responses=READ)
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

    @get("/{run_id:uuid}", summary="Show a training run", responses=READ)
    async def show(
        self, run_id: FromPath[UUID], session: Db, access: Caller, serving: NamedDependency[Serving]
    ) -> RunView:
        """Its state and progress, the metrics of its last step, and its result."""
        return await _view(session, await runs.get(session, run_id, access.project_id), serving)

    @get("/{run_id:uuid}/steps", summary="List the metrics of each step", responses=READ)
    async def steps(
        self, run_id: FromPath[UUID], session: Db, access: Caller, after: After = 0, limit: StepLimit = 1000
    ) -> list[StepView]:
        """In order of the steps."""
        run = await runs.get(session, run_id, access.project_id)
        return [StepView.of(row) for row in await runs.steps(session, run.id, after, limit)]

    @get("/{run_id:uuid}/log", summary="Show the log of a training run", responses=READ, media_type=MediaType.TEXT)
    async def log(self, run_id: FromPath[UUID], session: Db, access: Caller) -> str:
        """Its last 64 KiB, some seconds old while it runs. 404 until it begins."""
        run = await runs.get(session, run_id, access.project_id)
        text = await runs.read(session, run.id)
        if text is None:
            raise NotFoundError("this run has no log yet: it has not begun")
        return text

    @post("/{run_id:uuid}/cancel", status_code=202, summary="Cancel a training run", responses=CHANGE)
    async def cancel(
        self, run_id: FromPath[UUID], session: Db, access: Caller, serving: NamedDependency[Serving]
    ) -> RunView:
        """A queued run is cancelled immediately, a running one within seconds. 409 if it has ended."""
        await runs.get(session, run_id, access.project_id)
        return await _view(session, await cancel_run(session, access, run_id), serving)

    @post("/{run_id:uuid}/retry", status_code=202, summary="Retry a training run", responses=CHANGE)
    async def retry(
        self,
        run_id: FromPath[UUID],
        session: Db,
        access: Caller,
        notify_workers: NamedDependency[NotifyWorkers],
        serving: NamedDependency[Serving],
    ) -> RunView:
        """Queues it again; it resumes from its last checkpoint. 409 unless it failed or was cancelled."""
        await runs.get(session, run_id, access.project_id)
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
    await _check_settings(session, access, project, settings, data_rules)
    await check_experience(session, project, settings, judged=judged)
    run = await runs.create(session, project.id, settings)
    await _audit_run(session, access, run, AuditAction.RUN_QUEUED)
    await session.commit()
    await notify_workers(run.id)
    return run


async def _check_settings(
    session: AsyncSession, access: Access, project: tables.Project, settings: RunSettings, rules: DataRules
) -> None:
    """Raises InvalidError for settings with which a run could only fail: they name what is not there, or data that
    a run of this key may not read. Raises NotFoundError for an unknown dataset.
    """
    check_runnable(settings)
    if settings.environment:
        check_environment(settings.environment, await runs.installed(session))
    await check_practised_api(session, project, settings)
    if settings.data:
        if dataset_id := dataset_id_of(settings.data):
            await dataset_table.get(session, dataset_id, project.id)
        else:
            check_location(settings.data, rules.prefixes, directories=access.project_id is None)


async def retry_run(
    session: AsyncSession, access: Access, run_id: UUID, notify_workers: NotifyWorkers
) -> tables.TrainingRun:
    """Queue it again, and commit. Raises ConflictError unless it failed or was cancelled."""
    run = await runs.retry(session, run_id)
    await _audit_run(session, access, run, AuditAction.RUN_RETRIED)
    await session.commit()
    await notify_workers(run.id)
    return run


async def cancel_run(session: AsyncSession, access: Access, run_id: UUID) -> tables.TrainingRun:
    """Cancel it at once if it waits, or else within seconds, and commit. Raises ConflictError if it has ended."""
    run = await runs.request_cancel(session, run_id)
    await _audit_run(session, access, run, AuditAction.RUN_CANCELLED)
    await session.commit()
    return run


async def _audit_run(session: AsyncSession, access: Access, run: tables.TrainingRun, action: AuditAction) -> None:
    await audit.add(session, run.project_id, None, access.actor, action, {"run": str(run.id)})


async def _view(session: AsyncSession, run: tables.TrainingRun, serving: Serving) -> RunView:
    names = await project_names(session)
    last = await runs.steps(session, run.id, run.step - 1, limit=1)
    buys = await estimate(session, run, serving)
    return RunView.full(run, names[run.project_id], last[0] if last else None, buys)


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
        progress = msgspec.structs.asdict(await schedule.progress(session, row))
        progress |= msgspec.structs.asdict(await outlook(session, row, serving))
        links = ConsoleLinks.to("/console/runs/schedule", project)
        return cls(project=project, links=links, **progress, **columns(row, cls, "project", "links", *progress))


class ScheduleController(Controller):
    path = "/schedule"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @put(summary="Set the schedule", responses=READ)
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
        row = await put_schedule(session, access, owner, data, data_rules)
        return await ScheduleView.of(session, row, owner.name, serving)

    @get(summary="Show the schedule", responses=READ)
    async def show(
        self, session: Db, access: Caller, serving: NamedDependency[Serving], project: ProjectName = None
    ) -> ScheduleView:
        """404 if the project has no schedule."""
        owner = await find_project(session, access, project)
        return await ScheduleView.of(session, await schedule.get(session, owner.id), owner.name, serving)

    @delete(summary="Delete the schedule", responses=READ)
    async def remove(self, session: Db, access: Caller, project: ProjectName = None) -> None:
        """Runs that it has queued remain."""
        owner = await find_project(session, access, project)
        await remove_schedule(session, access, owner)


async def put_schedule(
    session: AsyncSession, access: Access, project: tables.Project, new: ScheduleRequest, data_rules: DataRules
) -> tables.Schedule:
    """Set the schedule of a project, and commit. Raises InvalidError, and NotFoundError for a dataset."""
    await _check_settings(session, access, project, new.settings, data_rules)
    row = await schedule.put(session, project.id, new)
    detail = msgspec.to_builtins(new)
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.SCHEDULE_CHANGED, detail)
    await session.commit()
    return row


async def remove_schedule(session: AsyncSession, access: Access, project: tables.Project) -> None:
    """Delete the schedule of a project, and commit. Raises NotFoundError."""
    await schedule.remove(session, project.id)
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.SCHEDULE_DELETED, {})
    await session.commit()
