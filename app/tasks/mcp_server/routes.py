"""The MCP server at /mcp: tasks and skills as tools, for the keys of REST. A task is waited for, and the client
is told what happens in it.

It keeps no sessions, so any replica of the API may answer any request.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any, Final, Generic, TypeVar, cast
from uuid import UUID

import mcp_types as types
import msgspec
from litestar import asgi
from litestar.exceptions import MethodNotAllowedException
from litestar.types import HTTPScope, Receive, Scope, Send
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from starlette.requests import Request

from app.base.errors import InvalidError, UnauthorizedError
from app.base.fields import Scenario, Text, columns
from app.base.text import shortened
from app.base.values import Json
from app.db import results, tables
from app.db.database import TRANSIENT, Sessions, reading
from app.db.notify import NotificationListener
from app.projects.authorization import authorize, find_project, project_filter
from app.projects.settings import Limits
from app.skills.library import SkillSearch
from app.skills.requests import SkillMatch
from app.skills.routes import SkillRunRequest, run_skill, search_skills
from app.tasks import store as tasks
from app.tasks.events import TaskReader
from app.tasks.requests import Instruction, Principal, TaskRequest
from app.tasks.routes import list_tasks
from app.tasks.submission import submit_request
from app.tasks.views import TaskPage, TaskView, view_task
from app.web.access import ANY_KEY, Access
from app.web.problem import problem_for

_MAX_BODY_BYTES = 1 << 20
_CHARS = 500  # of a message
_FIELDS: Final = {  # of the events that a message tells
    "turn": ("text",),
    "call": ("api", "error"),
    "observation": ("text",),
    "skill": ("status", "name", "reason"),
    "approval": ("status", "api", "because", "reason"),
    "check": ("status", "output"),
    "remark": ("text",),
    "done": ("state", "failure"),
}

A = TypeVar("A", bound=msgspec.Struct)

Report = Callable[[int, str], Awaitable[None]]
"""Tells the client how far the call is, by a number that grows, and what happens."""


class ToolParts(msgspec.Struct, frozen=True, kw_only=True):
    """What the tools answer from."""

    sessions: Sessions
    listener: NotificationListener
    library: SkillSearch
    limits: Limits


class ToolCall(msgspec.Struct, frozen=True):
    """Who calls, with what there is to answer."""

    access: Access
    parts: ToolParts
    report: Report


class ServedTool(msgspec.Struct, Generic[A], frozen=True, kw_only=True):
    """Described by the docstring of `do`. The schemas of arguments and result follow from their structs.

    `scope` is that of the key.
    """

    name: str
    scope: str
    arguments: type[A]
    result: type[msgspec.Struct]
    do: Callable[[ToolCall, A], Awaitable[msgspec.Struct]]
    reads: bool = False
    destroys: bool = False

    def listed(self) -> types.Tool:
        """What clients are told."""
        hints = types.ToolAnnotations(
            read_only_hint=self.reads, destructive_hint=self.destroys, open_world_hint=not self.reads
        )
        return types.Tool(
            name=self.name,
            description=inspect.getdoc(self.do),
            input_schema=schema_of(self.arguments),
            output_schema=schema_of(self.result),
            annotations=hints,
        )

    async def call(self, call: ToolCall, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """The result as JSON. Raises InvalidError for arguments that do not fit."""
        try:
            given = msgspec.convert(dict(arguments), self.arguments)
        except msgspec.ValidationError as error:
            raise InvalidError(f"{self.name}: {error}") from error
        answer: dict[str, Json] = msgspec.to_builtins(await self.do(call, given))
        return answer


def schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of an object: clients expect its fields at the top."""
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(struct.__name__)
    return {**schema, "$defs": components} if components else schema


Wait = Annotated[
    float,
    msgspec.Meta(
        ge=0,
        le=3_600,
        description="answer once the task has ended or waits for a person's approval, or after so many seconds",
    ),
]


async def followed(call: ToolCall, task_id: UUID, seconds: float, after: int | None = None) -> TaskView:
    """The task once it has ended or begins to wait, or after so many seconds. Events are reported as they happen.

    `after` is the event from which on; None: from now on.
    """
    async with reading(call.parts.sessions) as session:
        task = await tasks.get(session, task_id, call.access.project_id)
        if after is None:
            after = await results.latest(session, task.id)
    if seconds and task.state not in tables.TASK_END_STATES:
        try:
            async with asyncio.timeout(seconds) as clock:
                await _follow(call, task_id, after)
        except TimeoutError:
            if not clock.expired():
                raise
    async with reading(call.parts.sessions) as session:
        return await view_task(
            session, await tasks.get(session, task_id, call.access.project_id), call.parts.limits
        )


async def _follow(call: ToolCall, task_id: UUID, after: int) -> None:
    """Raises UnauthorizedError if the key is revoked meanwhile."""
    reader, listener = TaskReader(call.parts.sessions, task_id, after), call.parts.listener
    with listener.subscribe(task_id) as news:
        while True:
            news.clear()  # before reading: events during the read wake it again
            if await call.access.has_ended():
                raise UnauthorizedError("this key was revoked")
            found, ended = await _read(reader)
            for each in found:
                await call.report(each.seq, message_of(each))
            if ended or any(each.kind == "approval" and each.data.get("status") == "wanted" for each in found):
                return
            if not found:
                await listener.wait(news)


async def _read(reader: TaskReader) -> tuple[list[tables.TaskEvent], bool]:
    """Nothing while the database does not answer: a call that failed now would be made again."""
    try:
        return await reader.read()
    except TRANSIENT:
        return [], False


def message_of(event: tables.TaskEvent) -> str:
    """A line or more for people, such as `call: mail.send_mail`."""
    said = " ".join(str(event.data[name]) for name in _FIELDS.get(event.kind, ()) if event.data.get(name))
    return shortened(f"{event.kind}: {said}", _CHARS)


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
    request = TaskRequest(**columns(given, TaskRequest))
    async with call.parts.sessions() as session:
        [task] = await submit_request(session, call.access, request, given.idempotency_key, call.parts.limits)
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
    return TaskWithTurns(turns_so_far=turns, **columns(view, TaskView))


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
        task = await tasks.request_cancel(session, given.task_id, call.access.project_id)
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


class SearchArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the skills are for."""

    instruction: Instruction
    project: Project | None = None
    scenario: Scenario | None = None
    principal: Principal = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=50)] = 10


class SkillMatches(msgspec.Struct, frozen=True):
    """Best first; empty if none fits."""

    skills: list[SkillMatch]


async def search(call: ToolCall, given: SearchArguments) -> SkillMatches:
    """Find the skills that a task with this instruction would be offered: Python functions that earlier tasks
    wrote and that call the project's APIs. run_skill runs one.
    """
    async with reading(call.parts.sessions) as session:
        owner = await find_project(session, call.access, given.project)
        where = (session, call.parts.library, owner.id)
        found = await search_skills(*where, given.instruction, given.scenario, given.principal, given.limit)
    return SkillMatches(found)


class RunArguments(SkillRunRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which skill, and with which arguments."""

    skill_id: Annotated[UUID, msgspec.Meta(description="the `id` of the skill, from search_skills")]
    idempotency_key: IdempotencyKey | None = None
    wait_seconds: Wait = 30


async def run(call: ToolCall, given: RunArguments) -> TaskView:
    """Run a skill with arguments, in a sandbox and with the rights that it was kept with: a task without a model.

    `answer` is what it returned. If it is not there within `wait_seconds`, follow the task with get_task.
    """
    request = SkillRunRequest(**columns(given, SkillRunRequest))
    async with call.parts.sessions() as session:
        limits, key = call.parts.limits, given.idempotency_key
        task = await run_skill(session, call.access, given.skill_id, request, key, limits)
        await session.commit()
    return await followed(call, task.id, given.wait_seconds, after=0)


SKILL_TOOLS: Final = (
    ServedTool(
        name="search_skills", scope="skills", arguments=SearchArguments, result=SkillMatches, do=search, reads=True
    ),
    ServedTool(name="run_skill", scope="tasks", arguments=RunArguments, result=TaskView, do=run, destroys=True),
)


_INSTRUCTIONS = (
    "An agent that carries out tasks by writing Python against live APIs, and keeps what worked as skills. "
    "Submit a task in natural language, or find a skill that does it and run that."
)
_TOOLS: Final = {tool.name: tool for tool in (*TASK_TOOLS, *SKILL_TOOLS)}

Context = ServerRequestContext[Any, Request]


@asgi("/mcp", guards=[authorize], opt={"scope": ANY_KEY}, copy_scope=True)
async def mcp(scope: Scope, receive: Receive, send: Send) -> None:
    """Streamable HTTP. There is no stream of its own to GET, and no session to DELETE."""
    if cast("HTTPScope", scope)["method"] != "POST":
        raise MethodNotAllowedException(headers={"allow": "POST"})
    manager: StreamableHTTPSessionManager = scope["litestar_app"].state["mcp"]
    await manager.handle_request(scope, receive, send)  # type: ignore[arg-type]


@asynccontextmanager
async def running_server(parts: ToolParts) -> AsyncIterator[StreamableHTTPSessionManager]:
    """Answers requests while it is entered."""

    async def list_tools(context: Context, _: object) -> types.ListToolsResult:
        access = _access(context)
        return types.ListToolsResult(
            tools=[each.listed() for each in _TOOLS.values() if access.allows(each.scope)]
        )

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await _call(parts, context, params)

    server = Server(
        "sage-server",
        version=version("sage-server"),
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda _: None,  # no argument is repeated in a header
    )
    manager = StreamableHTTPSessionManager(server, stateless=True, max_request_body_size=_MAX_BODY_BYTES)
    async with manager.run():
        yield manager


async def _call(parts: ToolParts, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """A failure is a result: the client's model reads it, and may mend the call."""
    tool = _TOOLS.get(params.name)
    if tool is None:
        raise MCPError(types.INVALID_PARAMS, f"no tool is named {params.name!r}; tools/list lists them")
    try:
        access = _access(context)
        access.require(tool.scope)
        answer = await tool.call(ToolCall(access, parts, _reporter(context)), params.arguments or {})
    except Exception as error:  # noqa: BLE001  as for REST, whose last resort logs what is unexpected
        problem = problem_for(context.request, error)
        text = types.TextContent(type="text", text=f"{problem.error}: {problem.detail}")
        return types.CallToolResult(content=[text], is_error=True)
    shown = types.TextContent(type="text", text=msgspec.json.encode(answer).decode())
    return types.CallToolResult(content=[shown], structured_content=answer)


def _access(context: Context) -> Access:
    """Of the key that `authorize` has found."""
    assert context.request is not None
    access: Access = context.request.scope["state"]["access"]
    return access


def _reporter(context: Context) -> Report:
    async def report(number: int, message: str) -> None:
        await context.session.report_progress(number, message=message)

    return report
