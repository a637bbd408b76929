"""The tools for tasks."""

from typing import Annotated, Final
from uuid import UUID

import msgspec

from app.api.mcp_server.following import Wait, followed
from app.api.mcp_server.tool import ServedTool, ToolCall
from app.api.submission import Submission, TaskRequest, submit_all
from app.api.task_view import TaskPage, TaskView, view_task
from app.api.tasks import cancel_task, list_tasks
from app.db import results, tables, tasks
from app.db.database import reading
from app.projects.authorization import project_filter
from app.web.fields import Scenario, Text

_TURNS = 500  # events of turns that are read

TaskId = Annotated[UUID, msgspec.Meta(description="the `id` of the task")]
IdempotencyKey = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        description="a call with the same key submits nothing more: use it to try again",
    ),
]
Project = Annotated[str, msgspec.Meta(description="default: the key's own project, or the only one")]


class SubmitArguments(TaskRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a task."""

    idempotency_key: IdempotencyKey | None = None
    wait_seconds: Wait = 0


async def submit_task(call: ToolCall, given: SubmitArguments) -> TaskView:
    """Have the agent carry out a task: it writes Python that calls the project's APIs, and answers.

    With `wait_seconds` the answer comes with the result if it is there in time; otherwise follow the task with
    get_task. `state` is accepted, running, waiting (a person has to approve an API call), done, failed or
    cancelled.
    """
    fields = {name: getattr(given, name) for name in TaskRequest.__struct_fields__}
    async with call.parts.sessions() as session:
        submission = Submission(**fields)
        [task] = await submit_all(session, call.access, submission, given.idempotency_key, call.parts.limits)
        await session.commit()
    return await followed(call, task.id, given.wait_seconds, after=0)


class GetArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which task, and how much of it."""

    task_id: TaskId
    wait_seconds: Wait = 0
    turns: Annotated[bool, msgspec.Meta(description="with what the agent wrote and read, turn by turn")] = False


class TurnText(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent wrote in a turn, and what it read then; null while its code runs."""

    turn: int
    text: str
    observation: str | None = None


class TaskWithTurns(TaskView, frozen=True, kw_only=True):
    """A task; `turns_so_far` is null if it was not asked for."""

    turns_so_far: list[TurnText] | None


async def get_task(call: ToolCall, given: GetArguments) -> TaskWithTurns:
    """Show a task: its state, its answer, what it cost, and its skills.

    With `wait_seconds` it is followed: the answer comes once it has ended or waits for a person, and progress is
    reported meanwhile to clients that ask for it.
    """
    view = await followed(call, given.task_id, given.wait_seconds)
    turns = await _turns_of(call, given.task_id) if given.turns else None
    return TaskWithTurns(turns_so_far=turns, **{name: getattr(view, name) for name in TaskView.__struct_fields__})


class ListArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters, all of which a task has to pass."""

    project: Project | None = None
    state: tables.TaskState | None = None
    scenario: Scenario | None = None
    q: (
        Annotated[
            Text, msgspec.Meta(min_length=1, max_length=500, description="words of the instruction, all of them")
        ]
        | None
    ) = None
    cursor: Annotated[str, msgspec.Meta(description="`next_cursor` of the previous page")] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 20


async def list_my_tasks(call: ToolCall, given: ListArguments) -> TaskPage:
    """List tasks, newest first."""
    async with reading(call.parts.sessions) as session:
        only = tasks.TaskFilter(
            project_id=await project_filter(session, call.access, given.project),
            state=given.state,
            scenario=given.scenario,
            words=given.q,
        )
        return await list_tasks(session, only, given.cursor, given.limit)


class CancelArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which task."""

    task_id: TaskId


async def cancel(call: ToolCall, given: CancelArguments) -> TaskView:
    """Cancel a task: one that waits immediately, a running one within about a second."""
    async with call.parts.sessions() as session:
        task = await cancel_task(session, call.access, given.task_id)
        await session.commit()
        return await view_task(session, task, call.parts.limits)


async def _turns_of(call: ToolCall, task_id: UUID) -> list[TurnText]:
    async with reading(call.parts.sessions) as session:
        task = await tasks.get(session, task_id, call.access.project_id)
        written = await results.of_kind(session, task.id, "turn")
        read = {each["turn"]: each["text"] for each in await results.of_kind(session, task.id, "observation")}
    return [TurnText(turn=each["turn"], text=each["text"], observation=read.get(each["turn"])) for each in written]


TASK_TOOLS: Final = (
    ServedTool(name="submit_task", scope="tasks", arguments=SubmitArguments, result=TaskView, do=submit_task),
    ServedTool(
        name="get_task", scope="tasks", arguments=GetArguments, result=TaskWithTurns, do=get_task, reads=True
    ),
    ServedTool(
        name="list_tasks", scope="tasks", arguments=ListArguments, result=TaskPage, do=list_my_tasks, reads=True
    ),
    ServedTool(
        name="cancel_task", scope="tasks", arguments=CancelArguments, result=TaskView, do=cancel, destroys=True
    ),
)
