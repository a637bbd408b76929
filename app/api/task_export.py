"""Route that streams finished tasks with their trajectories, to be read by other programs."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, QueryParameter
from litestar.response import Stream

from app.api.task_view import TaskSummary
from app.api.trajectories import TrajectoryView, view
from app.base.values import Trajectory
from app.db import tables, task_batches, tasks
from app.db.database import Sessions
from app.projects.authorization import project_filter, project_names
from app.web.access import Caller
from app.web.fields import ProjectName, Since, Until, in_utc
from app.web.problem import problems

_MEDIA_TYPE = "text/x-ndjson"
_STREAM = ResponseSpec(
    Any,
    description="One JSON object per line: a `task`, as GET /v1/tasks shows it, and its `trajectory`, as "
    "GET /v1/tasks/{task_id}/trajectory shows it without the text of its prompts",
    media_type=_MEDIA_TYPE,
    generate_examples=False,
)


class ExportedTask(msgspec.Struct, frozen=True):
    """One line of an export."""

    task: TaskSummary
    trajectory: TrajectoryView


class ExportController(Controller):
    path = "/tasks/export"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(
        summary="Export tasks with their trajectories",
        media_type=_MEDIA_TYPE,
        responses={200: _STREAM, **problems(400, 401, 403, 404)},
    )
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
            async for batch in task_batches.batches(sessions, only, limit):
                yield await asyncio.to_thread(
                    b"".join,
                    (_line(task, names.get(task.project_id, ""), record, tokens) for task, record in batch),
                )

        return Stream(lines(), media_type=_MEDIA_TYPE)


def _line(task: tables.Task, project: str, record: bytes, tokens: bool) -> bytes:
    trajectory = view(msgspec.msgpack.decode(record, type=Trajectory), tokens=tokens)
    return msgspec.json.encode(ExportedTask(TaskSummary.of(task, project), trajectory)) + b"\n"
