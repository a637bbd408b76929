"""Routes for exams: the tasks on which a project's candidates are examined, and the results of its releases."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError
from app.base.fields import MOST, Name, Scenario, columns
from app.base.run_settings import MIN_KINDS, MIN_SCENARIOS
from app.base.values import Json
from app.db import tables
from app.db.tables import AuditAction, ExamSource
from app.projects import audit
from app.projects.authorization import find_project, project_filter, project_names
from app.projects.kinds import OWN_WORK
from app.releases.exams import store as exams
from app.releases.exams.store import ExamSize, Ground, NewExamTask
from app.tasks.requests import Check, Instruction, Variables
from app.tasks.submission import refuse_unparsable
from app.web.access import Access, Caller, Db
from app.web.fields import ConsoleLinks, ProjectName, in_utc
from app.web.problem import problems

_READ = problems(400, 401, 403, 404)
_MOST = 2_000  # tasks of one exam

Version = Annotated[int | None, QueryParameter(ge=1, le=MOST, description="default: the newest")]
Digest = Annotated[
    str | None,
    QueryParameter(pattern=r"^[0-9a-f]{8,64}$", description="its sha256, or how that begins; default: any"),
]


class ExamTaskRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks with the same `scenario` differ only in details, and are examined one after the other."""

    instruction: Instruction
    check_code: Check = msgspec.field(name="check")
    scenario: Scenario | None = None
    variables: Variables = {}


class LogSelection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scored tasks that were served: those named, or the best of each kind that ended in a window of time."""

    tasks: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=_MOST)] | None = None
    since: datetime | None = None
    until: datetime | None = None
    scenarios: Annotated[list[Scenario], msgspec.Meta(min_length=1, max_length=1_000)] | None = None
    kinds: Annotated[int, msgspec.Meta(ge=1, le=_MOST)] = 200
    """The latest kinds, at most. A kind is a scenario, or an instruction without one."""
    tasks_each: Annotated[int, msgspec.Meta(ge=1, le=20)] = 3
    """Tasks of each kind, at most."""

    async def read(self, session: AsyncSession, project_id: UUID) -> list[NewExamTask]:
        if self.tasks is None:
            chosen = {name: getattr(self, name) for name in ("scenarios", "kinds", "tasks_each")}
            since, until = in_utc(self.since), in_utc(self.until)
            return await exams.from_log(session, project_id, since=since, until=until, **chosen)
        if self != LogSelection(tasks=self.tasks):
            raise InvalidError("from_log: name either `tasks` or a window to choose them from")
        return await exams.of_tasks(session, project_id, self.tasks)


class ExamRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `tasks`, each with its check, or a selection `from_log`."""

    name: Name
    tasks: Annotated[list[ExamTaskRequest], msgspec.Meta(min_length=1, max_length=_MOST)] | UnsetType = UNSET
    from_log: LogSelection | UnsetType = UNSET

    async def validate(self) -> None:
        """Raises InvalidError. To be called before the first query."""
        if (self.tasks is UNSET) == (self.from_log is UNSET):
            raise InvalidError("send either `tasks` or `from_log`")
        if self.name == OWN_WORK:
            raise InvalidError(f"{OWN_WORK!r} is the exam of the setting holdout_percent: choose another name")
        if self.tasks is not UNSET:
            await refuse_unparsable(task.check_code for task in self.tasks)

    async def read(self, session: AsyncSession, project_id: UUID) -> tuple[ExamSource, list[NewExamTask]]:
        """Of a valid request. Raises InvalidError if it selects no task."""
        if self.from_log is not UNSET:
            chosen = await self.from_log.read(session, project_id)
            if not chosen:
                raise InvalidError("from_log: no scored task of this project is among these")
            return ExamSource.LOG, chosen
        assert self.tasks is not UNSET  # one of the two
        return ExamSource.SUBMITTED, [NewExamTask(**columns(each, ExamTaskRequest)) for each in self.tasks]


class ExamView(msgspec.Struct, frozen=True, kw_only=True):
    """One version. `digest` is the sha256 of its tasks.

    `decides_on` says what the gate can try enough of its scenarios on: recorded calls need tasks that were solved,
    staging needs tasks with a check, and live APIs need tasks with both that only read. `waits_for` says why that
    is nothing yet.

    `learned` of its size are tasks of kinds that releases learned from which have been active, before they were
    held out: they may be known by heart.
    """

    project: str
    name: str
    version: int
    digest: str
    source: ExamSource
    created_at: datetime
    size: ExamSize
    decides_on: list[Ground]
    waits_for: str | None
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.Exam, project: str, size: ExamSize) -> Self:
        own = columns(row, cls, "project", "size", "decides_on", "waits_for", "links")
        links = ConsoleLinks.to(f"/console/exams/{row.name}", project)
        waits_for = None if size.decides_on else _waits_for(size)
        return cls(project=project, size=size, decides_on=size.decides_on, waits_for=waits_for, links=links, **own)


class ExamTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """`task_id` is that of the served task it repeats; null for one that came with the request."""

    instruction: str
    scenario: str | None
    variables: dict[str, Json]
    check_code: str | None = msgspec.field(name="check")
    task_id: UUID | None


class ExamDetail(msgspec.Struct, frozen=True, kw_only=True):
    exam: ExamView
    tasks: list[ExamTaskView]


class ExamResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one release did. Shares in percent with 95 % intervals, as in its evidence.

    `coverage` is the share of the scenarios that were tried whose results are known. Those left out could not be
    tried, as none of their tasks can be judged. `digest` is that of the exam: once one was deleted, versions are
    counted anew. Results of earlier versions of the server lack some of these.
    """

    release: int | None
    model: str
    run: UUID | None  #: results of one run are of the same scenarios
    at: datetime
    version: int
    digest: str | None
    on: str
    coverage: float | None
    scenarios: int | None
    scenarios_left_out: int | None
    tasks_left_out: int | None
    figures: dict[str, Json]

    @classmethod
    def of(cls, row: tables.Evaluation, number: int | None) -> Self:
        exam = row.settings["exam"]
        counts = {name: exam.get(name) for name in ("digest", "scenarios", "scenarios_left_out", "tasks_left_out")}
        return cls(
            release=number,
            model=row.model,
            run=row.run_id,
            at=row.created_at,
            version=exam["version"],
            on=exam["on"],
            coverage=row.settings.get("coverage"),
            figures=row.figures,
            **counts,
        )


class ExamController(Controller):
    path = "/exams"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(summary="Make an exam", responses=problems(400, 401, 403, 404))
    async def create(
        self, data: JSONBody[ExamRequest], session: Db, access: Caller, project: ProjectName = None
    ) -> ExamView:
        """A further version, if there is an exam of that name with other tasks. From then on no run learns from
        tasks of its scenarios, nor from any whose instruction is nearly the same.
        """
        await data.validate()
        owner = await find_project(session, access, project)
        source, tasks = await data.read(session, owner.id)
        row = await exams.put(session, owner.id, data.name, source, tasks)
        view = await _view(session, row, owner.name)
        about = (owner.id, None, access.actor, AuditAction.EXAM_STORED)
        await audit.add(session, *about, {"name": row.name, "version": row.version})
        await session.commit()
        return view

    @get(summary="List exams", responses=_READ)
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[ExamView]:
        """The newest version of each, by name."""
        rows = await exams.newest(session, await project_filter(session, access, project))
        names, sizes = await project_names(session), await exams.of(session, [row.id for row in rows])
        return [ExamView.of(row, names[row.project_id], sizes[row.id]) for row in rows]

    @get("/{name:str}", summary="Show an exam", responses=_READ)
    async def show(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        project: ProjectName = None,
        version: Version = None,
        digest: Digest = None,
    ) -> ExamDetail:
        """With its tasks."""
        owner = await find_project(session, access, project)
        row = await exams.get(session, owner.id, name, version, digest)
        tasks = await exams.tasks_of(session, row.id)
        return ExamDetail(
            exam=await _view(session, row, owner.name),
            tasks=[ExamTaskView(**columns(each, ExamTaskView)) for each in tasks],
        )

    @get("/{name:str}/results", summary="Show the results of an exam", responses=_READ)
    async def results(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None, digest: Digest = None
    ) -> list[ExamResult]:
        """Of every release that was examined on it, in any version, oldest first. Those of an exam of this name
        that was deleted are among them: `digest` tells them apart.
        """
        owner = await find_project(session, access, project)
        await exams.get(session, owner.id, name)
        found = await exam_results(session, owner.id, name)
        return [each for each in found if digest is None or (each.digest or "").startswith(digest)]

    @delete("/{name:str}", summary="Delete an exam", responses=_READ)
    async def remove(self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None) -> None:
        """In all versions. Runs may learn from its tasks from now on. Results of releases remain."""
        owner = await find_project(session, access, project)
        await delete_exam(session, access, owner, name)


async def delete_exam(session: AsyncSession, access: Access, owner: tables.Project, name: str) -> None:
    """Delete all versions, and commit. Raises NotFoundError."""
    await exams.delete(session, owner.id, name)
    await audit.add(session, owner.id, None, access.actor, AuditAction.EXAM_DELETED, {"name": name})
    await session.commit()


async def exam_results(session: AsyncSession, project_id: UUID, name: str) -> list[ExamResult]:
    """In any version, oldest first."""
    return [ExamResult.of(row, number) for row, number in await exams.of_exam(session, project_id, name)]


async def _view(session: AsyncSession, row: tables.Exam, project: str) -> ExamView:
    return ExamView.of(row, project, (await exams.of(session, [row.id]))[row.id])


def _waits_for(size: ExamSize) -> str:
    if size.scenarios < MIN_SCENARIOS:
        return f"it has {size.scenarios} scenarios, the gate needs at least {MIN_SCENARIOS}"
    if size.kinds < MIN_KINDS:
        return f"its tasks are of {size.kinds} kinds, the gate needs at least {MIN_KINDS}"
    return (
        f"{size.solved_scenarios} of its scenarios of {size.solved_kinds} kinds were solved by tasks that were "
        f"served, as recorded calls need, {size.checked_scenarios} of {size.checked_kinds} kinds have checks, as "
        f"staging needs: the gate needs {MIN_SCENARIOS} of either, and half of all {size.kinds} kinds, at least "
        f"{MIN_KINDS}"
    )
