"""Routes for tasks: submitted, listed, shown, run again, cancelled, settled, exported and erased; for the
runner processes, and for how far judges agree with people.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import Stream
from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ForbiddenError, InvalidError, NotFoundError
from app.base.fields import columns
from app.base.telemetry import TASKS_ERASED
from app.base.values import Json, Stop, Trajectory
from app.db import queries, runners, tables
from app.db.database import Sessions
from app.db.queries import Page
from app.projects import store as projects
from app.projects.authorization import find_project, project_filter, project_names
from app.projects.settings import Limits
from app.tasks import retention, verification
from app.tasks import store as tasks
from app.tasks.requests import Rerun, Submission
from app.tasks.retention import Erasure
from app.tasks.submission import repeat, submit_request
from app.tasks.verification import LEAST_TASKS, Agreement
from app.tasks.views import (
    Accepted,
    AcceptedMany,
    TaskPage,
    TaskSummary,
    TaskView,
    TrajectoryView,
    view,
    view_task,
)
from app.web.access import Access, Caller, Db
from app.web.fields import Cursor, IdempotencyKey, Limit, ProjectName, Since, Until, in_utc
from app.web.problem import CHANGE, READ, problems

Words = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00]*$",
        description='words of the instruction, all of them; "in quotes" in this order; -without; this or that',
    ),
]
Principal = Annotated[
    str, QueryParameter(min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="whose tasks to erase")
]
_SEARCH_SECONDS = 10.0
_AT_ONCE = 200  # tasks that are erased in one transaction
_MEDIA_TYPE = "text/x-ndjson"
_STREAM = ResponseSpec(
    Any,
    description="One JSON object per line: a `task`, as GET /v1/tasks shows it, and its `trajectory`, as "
    "GET /v1/tasks/{task_id}/trajectory shows it without the text of its prompts",
    media_type=_MEDIA_TYPE,
    generate_examples=False,
)


class Settlement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a call in doubt. `result` is what the agent's code gets from one that arrived."""

    arrived: bool
    result: Json = None

    def __post_init__(self) -> None:
        if self.result is not None and not self.arrived:
            raise ValueError("`result`: a call that did not arrive has none")


class ExportedTask(msgspec.Struct, frozen=True):
    """One line of an export."""

    task: TaskSummary
    trajectory: TrajectoryView


class TaskController(Controller):
    path = "/tasks"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(
        status_code=202, summary="Submit one task or many", responses=problems(400, 401, 403, 404, 409, 413, 429)
    )
    async def submit(
        self,
        data: JSONBody[Submission],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
        idempotency_key: IdempotencyKey = None,
    ) -> Accepted | AcceptedMany:
        """Stores and queues the tasks. Either all tasks of a submission are accepted or none."""
        rows = await submit_request(session, access, data, idempotency_key, limits)
        await session.commit()
        accepted = [Accepted.of(row) for row in rows]
        return AcceptedMany(accepted) if data.is_list else accepted[0]

    @get(summary="List tasks", responses=READ)
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        in_state: Annotated[tables.TaskState | None, QueryParameter(name="state")] = None,
        stop_reason: FromQuery[Stop | None] = None,
        scenario: FromQuery[str | None] = None,
        q: Words = None,
        skill_id: Annotated[UUID | None, QueryParameter(description="only tasks that were offered it")] = None,
        release_id: Annotated[UUID | None, QueryParameter(description="only tasks that it served")] = None,
        rerun_of: Annotated[UUID | None, QueryParameter(description="only tasks that run this one again")] = None,
        created_after: Since = None,
        created_before: Until = None,
        min_score: FromQuery[float | None] = None,
        max_score: FromQuery[float | None] = None,
        overruled: Annotated[
            bool,
            QueryParameter(
                description="only tasks with two scores, whoever gave them, that are 0.5 or more apart"
            ),
        ] = False,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> TaskPage:
        """Newest first. A search for words that takes more than 10 s is refused: limit it further then."""
        only = tasks.TaskFilter(
            project_id=await project_filter(session, access, project),
            state=in_state,
            stop=stop_reason,
            scenario=scenario,
            words=q,
            skill_ids=None if skill_id is None else [skill_id],
            release_id=release_id,
            rerun_of=rerun_of,
            created_after=in_utc(created_after, "created_after"),
            created_before=in_utc(created_before, "created_before"),
            min_score=min_score,
            max_score=max_score,
            contradicted=overruled,
        )
        return await list_tasks(session, only, cursor, limit)

    @get("/{task_id:uuid}", summary="Show a task", responses=READ)
    async def show(
        self, task_id: FromPath[UUID], session: Db, access: Caller, limits: NamedDependency[Limits]
    ) -> TaskView:
        """Its state and answer, what it cost, its skills, and the release that served it."""
        return await view_task(session, await tasks.get(session, task_id, access.project_id), limits)

    @post("/{task_id:uuid}/rerun", status_code=202, summary="Run a task again", responses=CHANGE)
    async def rerun(
        self,
        task_id: FromPath[UUID],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
        data: JSONBody[Rerun | None] = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Accepted:
        """A new task that repeats this one, whatever its state, as it was submitted: with its instruction,
        scenario, variables, check, principal and priority, except for the fields that are given. Its calls go out
        again; a replay makes none. A `release` that it is pinned to must serve, or have served: 409 for another.
        """
        again = await repeat(session, access, task_id, data or Rerun(), idempotency_key, limits)
        await session.commit()
        return Accepted.of(again)

    @post("/{task_id:uuid}/cancel", status_code=202, summary="Cancel a task", responses=CHANGE)
    async def cancel(
        self,
        task_id: FromPath[UUID],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
    ) -> TaskView:
        """A queued or waiting task is cancelled immediately, a running one within about a second. 409 if it has
        ended."""
        task = await tasks.request_cancel(session, task_id, access.project_id)
        await session.commit()
        return await view_task(session, task, limits)

    @post("/{task_id:uuid}/settle", status_code=202, summary="Settle a call in doubt", responses=CHANGE)
    async def settle(
        self,
        task_id: FromPath[UUID],
        data: JSONBody[Settlement],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
    ) -> TaskView:
        """The task goes on where it stopped: a call that arrived returns `result` to the agent's code, another one
        is sent. Webhooks are told of its end again. 409 for a task without a call `in_doubt`. The audit log
        records it.
        """
        settled = {"arrived": data.arrived, "result": data.result}
        task = await tasks.settle(session, task_id, access.project_id, access.actor, **settled)
        await session.commit()
        return await view_task(session, task, limits)


async def search(
    session: AsyncSession, only: tasks.TaskFilter, cursor: str | None, limit: int
) -> Page[tables.Task]:
    """Newest first. Raises InvalidError for a search that takes too long."""
    try:
        async with asyncio.timeout(_SEARCH_SECONDS):
            return await tasks.page(session, only, cursor=cursor, limit=limit)
    except TimeoutError as error:
        raise InvalidError(
            f"the search takes more than {_SEARCH_SECONDS:g} s: give a scenario, rarer words in `q`, or a "
            "shorter time from `created_after` to `created_before`"
        ) from error


async def list_tasks(session: AsyncSession, only: tasks.TaskFilter, cursor: str | None, limit: int) -> TaskPage:
    """As `search`, each with the name of its project."""
    page = await search(session, only, cursor, limit)
    names = await project_names(session)
    return TaskPage([TaskSummary.of(row, names[row.project_id]) for row in page.items], page.cursor)


class ExportController(Controller):
    path = "/tasks/export"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Export tasks with their trajectories", media_type=_MEDIA_TYPE, responses={200: _STREAM, **READ})
    async def export(  # noqa: PLR0913 - each is a query parameter
        self,
        access: Caller,
        sessions: NamedDependency[Sessions],
        project: ProjectName = None,
        scenario: FromQuery[str | None] = None,
        created_after: Since = None,
        created_before: Until = None,
        min_score: FromQuery[float | None] = None,
        tokens: Annotated[bool, QueryParameter(description="include token ids and logprobs")] = False,
        limit: Annotated[int | None, QueryParameter(ge=1, description="number of tasks; default: all")] = None,
    ) -> Stream:
        """Tasks that are done and have a trajectory, newest first, as a stream of lines. None is sent twice; tasks
        that end meanwhile may be missing.
        """
        async with sessions() as session:
            only = tasks.TaskFilter(
                project_id=await project_filter(session, access, project),
                state=tables.TaskState.DONE,
                scenario=scenario,
                created_after=in_utc(created_after, "created_after"),
                created_before=in_utc(created_before, "created_before"),
                min_score=min_score,
            )
            names = await project_names(session)

        async def lines() -> AsyncIterator[bytes]:
            async for batch in tasks.batches(sessions, only, limit):
                yield await asyncio.to_thread(
                    b"".join,
                    (_line(task, names.get(task.project_id, ""), record, tokens) for task, record in batch),
                )

        return Stream(lines(), media_type=_MEDIA_TYPE)


def _line(task: tables.Task, project: str, record: bytes, tokens: bool) -> bytes:
    trajectory = view(msgspec.msgpack.decode(record, type=Trajectory), tokens=tokens)
    return msgspec.json.encode(ExportedTask(TaskSummary.of(task, project), trajectory)) + b"\n"


class ErasureController(Controller):
    path = "/tasks"
    tags = ("Tasks",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @delete("/{task_id:uuid}", status_code=200, summary="Erase a task", responses=CHANGE)
    async def erase_task(
        self, task_id: FromPath[UUID], session: Db, sessions: NamedDependency[Sessions], access: Caller
    ) -> Erasure:
        """Deletes a task that has ended with its events, trajectory, feedback, approvals and messages, and every
        copy that training runs keep. Names the skills that it wrote, and the runs and releases that learned from
        it: they stay. 409 if it has not ended, or a run is learning from it."""
        task = await tasks.get(session, task_id, access.project_id)
        await session.commit()
        erased = await _erase(sessions, access, task.project_id, retention.of_task(task_id))
        if not erased.tasks:
            raise NotFoundError(f"no task has the id {task_id}; GET /v1/tasks lists them")
        return erased

    @delete(status_code=200, summary="Erase all tasks of a person", responses=CHANGE)
    async def erase_principal(
        self,
        principal: Principal,
        session: Db,
        sessions: NamedDependency[Sessions],
        access: Caller,
        project: ProjectName = None,
    ) -> Erasure:
        """All tasks of this `principal` in the project that were submitted so far. If it is interrupted, repeat
        it. 409, and none is erased, if one has not ended."""
        owner = await find_project(session, access, project)
        until = await queries.now(session)
        await session.commit()
        return await _erase(sessions, access, owner.id, retention.of_principal(owner.id, principal, until))


async def _erase(sessions: Sessions, access: Access, project_id: UUID, which: Select[UUID]) -> Erasure:
    """In small transactions, each with its entry in the audit log."""
    async with sessions() as session:
        await retention.check_erasable(session, which)
    erased, batch = Erasure(), None
    while batch is None or batch.tasks:
        async with sessions.begin() as session:
            batch = await retention.erase_some(session, project_id, which, access.actor, _AT_ONCE)
        TASKS_ERASED.inc(batch.tasks)
        erased += batch
    return erased


class RunnerView(msgspec.Struct, frozen=True, kw_only=True):
    """`in_flight` are tasks, `capacity` their limit; `error` is why it cannot execute any, `faults` what is wrong
    by part. One that is `draining` only ends what it has. `prompt_hash` is of the prompt it serves with.
    """

    id: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    in_flight: int
    capacity: int
    memory_bytes: int
    sandbox: str
    prompt: str | None = msgspec.field(name="prompt_hash")
    draining: bool
    error: str | None
    faults: dict[str, str]


class RunnerController(Controller):
    path = "/runners"
    tags = ("Health",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(summary="List runners", responses=problems(401, 403))
    async def index(self, session: Db, access: Caller) -> list[RunnerView]:
        """The processes that execute tasks and reported within the last seconds, oldest first. Not for a key that
        is limited to a project.
        """
        if access.project_id is not None:
            raise ForbiddenError("this key is limited to a project, and runners belong to all projects")
        return [RunnerView(**columns(each, RunnerView)) for each in await runners.live(session)]


class JudgeView(msgspec.Struct, frozen=True):
    """A judge with its options and the project's rubric: others have another name."""

    judge: str
    agreement: Agreement
    trusted: bool  #: runs learn from its scores


class AgreementView(msgspec.Struct, frozen=True):
    """`least` is the project's `judge_agreement`, which the lower bound of the interval must reach."""

    least: float
    least_tasks: int
    judges: list[JudgeView]


class JudgeController(Controller):
    path = "/judge"
    tags = ("Feedback",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get("/agreement", summary="Compare judges with people", responses=READ)
    async def agreement(self, session: Db, access: Caller, project: ProjectName = None) -> AgreementView:
        """Of the tasks that both a judge and a person have scored. A judge that always says the same is not
        trusted, however often that is right: its `kappa` is 0 or null.
        """
        owner = await find_project(session, access, project)
        least = projects.settings_of(owner).judge_agreement
        found = await verification.agreements(session, owner.id)
        judges = [JudgeView(name, each, not least or each.suffices(least)) for name, each in found.items()]
        return AgreementView(least, LEAST_TASKS, judges)
