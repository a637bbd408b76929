"""Routes for tasks."""

import asyncio
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.rerun import Rerun, repeat
from app.api.submission import Submission, submit_all
from app.api.task_view import Accepted, AcceptedMany, TaskPage, TaskSummary, TaskView, view_task
from app.base.errors import InvalidError
from app.base.values import Json, Stop
from app.db import doubts, results, tables, task_queue, tasks
from app.db.queries import Page
from app.projects.authorization import project_filter, project_names
from app.projects.settings import Limits
from app.web.access import Access, Caller, Db
from app.web.fields import Cursor, Limit, ProjectName, Since, Until, in_utc
from app.web.problem import problems

IdempotencyKey = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="repeating a submission with the same key creates no further tasks",
    ),
]
Words = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00]*$",
        description='words of the instruction, all of them; "in quotes" in this order; -without; this or that',
    ),
]
_SEARCH_SECONDS = 10.0


class Settlement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a call in doubt. `result` is what the agent's code gets from one that arrived."""

    arrived: bool
    result: Json = None

    def __post_init__(self) -> None:
        if self.result is not None and not self.arrived:
            raise ValueError("`result`: a call that did not arrive has none")


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
        rows = await submit_all(session, access, data, idempotency_key, limits)
        await session.commit()
        accepted = [Accepted.of(row) for row in rows]
        return AcceptedMany(accepted) if data.is_list else accepted[0]

    @get(summary="List tasks", responses=problems(400, 401, 403, 404))
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

    @get("/{task_id:uuid}", summary="Show a task", responses=problems(400, 401, 403, 404))
    async def show(
        self, task_id: FromPath[UUID], session: Db, access: Caller, limits: NamedDependency[Limits]
    ) -> TaskView:
        """Its state and answer, what it cost, its skills, and the release that served it."""
        return await view_task(session, await tasks.get(session, task_id, access.project_id), limits)

    @post(
        "/{task_id:uuid}/rerun",
        status_code=202,
        summary="Run a task again",
        responses=problems(400, 401, 403, 404, 409),
    )
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

    @post(
        "/{task_id:uuid}/cancel",
        status_code=202,
        summary="Cancel a task",
        responses=problems(400, 401, 403, 404, 409),
    )
    async def cancel(
        self,
        task_id: FromPath[UUID],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
    ) -> TaskView:
        """A queued or waiting task is cancelled immediately, a running one within about a second. 409 if it has
        ended."""
        task = await cancel_task(session, access, task_id)
        await session.commit()
        return await view_task(session, task, limits)

    @post(
        "/{task_id:uuid}/settle",
        status_code=202,
        summary="Settle a call in doubt",
        responses=problems(400, 401, 403, 404, 409),
    )
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
        await tasks.get(session, task_id, access.project_id)
        task = await doubts.settle(session, task_id, access.actor, arrived=data.arrived, result=data.result)
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


async def cancel_task(session: AsyncSession, access: Access, task_id: UUID) -> tables.Task:
    """The caller commits. Raises NotFoundError, and ConflictError if it has ended."""
    await tasks.get(session, task_id, access.project_id)
    task = await tasks.request_cancel(session, task_id)
    if task.state is tables.TaskState.CANCELLED and not await results.has(session, task_id, "done"):
        # no runner has it, so none will record its end
        ended = task_queue.TaskOutcome(state=task.state, stop=task.stop)
        await results.append(session, task_id, "done", msgspec.to_builtins(ended))
    return task
