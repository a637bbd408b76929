"""An environment of ours served by the protocol of OpenEnv (openenv 0.10), for trainers that are clients of it.

A session is one WebSocket connection at /ws, or is opened by JSON-RPC at /mcp, as its MCP clients do, which then
may attach a connection. Its tasks are listed by the task API. There is no reset or step by plain HTTP: these
would have no session.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final
from uuid import uuid4

import msgspec
import structlog
import uvicorn
from litestar import Litestar, Request, Response, WebSocket, get, post, websocket
from litestar.exceptions import HTTPException, WebSocketDisconnect
from litestar.params import FromPath, JSONBody
from uvicorn.protocols.utils import ClientDisconnected

from app.agent.rollout import RolloutLimits
from app.base.errors import AppError, NotFoundError, public_text
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.environment import Environment, Split
from trainer.worlds.openenv.sessions import (
    SPLITS,
    TOOLS,
    PlacedTask,
    RefusedError,
    ResetArguments,
    ServedTasks,
    TaskSession,
)

log = structlog.get_logger(__name__)
_OBJECT: Final[dict[str, Json]] = {"type": "object"}
_SCHEMAS: Final[dict[str, Json]] = {
    "action": {
        "type": "object",
        "properties": {
            "type": {"enum": ["list_tools", "call_tool"]},
            "tool_name": {"enum": list(TOOLS)},
            "arguments": _OBJECT,
        },
        "required": ["type"],
    },
    "observation": _OBJECT,
    "reset_observation": {"type": "object", "properties": {"instruction": {"type": "string"}}},
    "state": _OBJECT,
}
_WAITING: Final = 8  # messages of a connection
AnySocket = WebSocket[Any, Any, Any]
AnyRequest = Request[Any, Any, Any]


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`idle` are the seconds after which a session without a connection is closed."""

    sessions: int = 16
    scenarios: int = 100  # listed of each split
    idle: float = 600.0
    limits: RolloutLimits = RolloutLimits(turns=30)


def serve(name: str, environment: Environment, host: str, port: int, options: ServerOptions) -> None:
    """Serve until a signal stops the process. Raises InvalidError, WorldError for an environment without tasks."""
    environment.scenarios("train", 1, 0)
    uvicorn.run(
        create_server(name, environment, options),
        host=host,
        port=port,
        ws="websockets-sansio",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )


def create_server(name: str, environment: Environment, options: ServerOptions) -> Litestar:
    """The ASGI application. `name` is what the task API calls the environment."""
    tasks = ServedTasks(environment, options.scenarios)
    sessions = Sessions(tasks, options)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        await asyncio.to_thread(lambda: tasks.listed)
        async with ForkedSandbox() as sandbox, sessions.opened(sandbox):
            yield

    @websocket("/ws")
    async def talk(socket: AnySocket) -> None:
        await socket.accept()
        with suppress(WebSocketDisconnect, ClientDisconnected):
            try:
                async with sessions.attached(socket.query_params.get("session_id")) as entry:
                    await _converse(socket, lambda message: _answer(sessions, entry, message))
            except RefusedError as error:
                await socket.send_text(_refusal(error))
            await socket.close()

    @post("/mcp", status_code=200)
    async def call(data: JSONBody[RpcRequest]) -> dict[str, Json]:
        return await _rpc(sessions, None, data)

    @get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy"}

    @get("/schema")
    async def schema() -> dict[str, Json]:
        return _SCHEMAS

    @get("/metadata")
    async def metadata() -> dict[str, str]:
        about = f"Tasks of the environment {name}, done in Python that calls apps."
        return {"name": name, "description": about, "version": version("sage-server")}

    return Litestar(
        route_handlers=[talk, call, health, schema, metadata, *_task_routes(name, tasks)],
        lifespan=[lifespan],
        openapi_config=None,
        logging_config=None,  # or it would configure logging for the whole process
        exception_handlers={AppError: _explain, HTTPException: _decline},
    )


class Span(msgspec.Struct, frozen=True):
    """Which of the listed tasks of a split."""

    split: Split
    index: int = 0
    start: int | None = None
    stop: int | None = None


def _task_routes(name: str, tasks: ServedTasks) -> list[Any]:
    def listed(environment: str, wanted: Span) -> list[dict[str, Json]]:
        if environment.lower() != name.lower():
            raise NotFoundError(f"unknown environment {environment}: this is {name}")
        found: list[PlacedTask] = tasks.listed[wanted.split]
        return [each.described(wanted.split, index) for index, each in enumerate(found)]

    @get("/list_environments")
    async def list_environments() -> list[str]:
        return [name]

    @get("/{environment:str}/splits")
    async def list_splits(environment: FromPath[str]) -> list[dict[str, str]]:
        return [{"name": each, "type": each} for each in SPLITS if listed(environment, Span(each))]

    @post("/{environment:str}/num_tasks", status_code=200)
    async def num_tasks(environment: FromPath[str], data: JSONBody[Span]) -> dict[str, int]:
        return {"num_tasks": len(listed(environment, data))}

    @post("/{environment:str}/tasks", status_code=200)
    async def list_tasks(environment: FromPath[str], data: JSONBody[Span]) -> dict[str, Json]:
        return {"tasks": listed(environment, data), "env_name": name}

    @post("/{environment:str}/task", status_code=200)
    async def show_task(environment: FromPath[str], data: JSONBody[Span]) -> dict[str, Json]:
        found = listed(environment, data)
        tasks.at(data.split, data.index)
        return {"task": found[data.index]}

    @post("/{environment:str}/task_range", status_code=200)
    async def list_range(environment: FromPath[str], data: JSONBody[Span]) -> dict[str, Json]:
        return {"tasks": listed(environment, data)[data.start : data.stop]}

    return [list_environments, list_splits, num_tasks, list_tasks, show_task, list_range]


@dataclass(eq=False)
class Entry:
    """A session, and whether a connection has it."""

    id: str
    session: TaskSession
    attached: bool = False
    ends: bool = False  # with its connection
    used: float = field(default_factory=time.monotonic)


class Sessions:
    """Those of all clients."""

    def __init__(self, tasks: ServedTasks, options: ServerOptions) -> None:
        self._tasks, self._options = tasks, options
        self._entries: dict[str, Entry] = {}
        self._sandbox: ForkedSandbox | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def opened(self, sandbox: ForkedSandbox) -> AsyncIterator[None]:
        """Sessions run code in this sandbox, and end with the block."""
        self._sandbox = sandbox
        reaper = asyncio.create_task(self._close_idle())
        try:
            yield
        finally:
            reaper.cancel()
            for entry in list(self._entries.values()):
                await self.close(entry)

    def open(self, *, ends: bool = False) -> Entry:
        """A new session. Raises RefusedError if there are as many as may be."""
        most = self._options.sessions
        if len(self._entries) >= most:
            counts = {"active_sessions": len(self._entries), "max_sessions": most}
            message = f"all {most} sessions are in use: try again later, or serve with more --sessions"
            raise RefusedError("CAPACITY_REACHED", message, **counts)
        assert self._sandbox is not None
        entry = Entry(str(uuid4()), TaskSession(self._tasks, self._sandbox, self._options.limits), ends=ends)
        self._entries[entry.id] = entry
        return entry

    def find(self, session: str | None) -> Entry:
        """Raises RefusedError."""
        entry = self._entries.get(session or "")
        if entry is None:
            raise RefusedError("SESSION_ERROR", f"Unknown session_id: {session}")
        entry.used = time.monotonic()
        return entry

    async def close(self, entry: Entry) -> None:
        if self._entries.pop(entry.id, None) is not None:
            try:
                await entry.session.close()
            except Exception as error:  # noqa: BLE001  worlds are of others, and the other sessions go on
                log.warning("a world could not be closed", reason=str(error))

    @asynccontextmanager
    async def attached(self, session: str | None) -> AsyncIterator[Entry]:
        """Of a connection: the session that it names, or one of its own."""
        entry = self.find(session) if session else self.open(ends=True)
        if entry.attached:
            raise RefusedError("SESSION_ERROR", f"Session {session} already has an attached WebSocket")
        entry.attached = True
        try:
            yield entry
        finally:
            entry.attached, entry.used = False, time.monotonic()
            if entry.ends:
                await asyncio.shield(self.close(entry))

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._options.idle / 4, 30.0))
            latest = time.monotonic() - self._options.idle
            for entry in list(self._entries.values()):
                if not entry.attached and entry.used < latest:
                    await self.close(entry)


async def _converse(socket: AnySocket, answer: Callable[[str], Awaitable[bytes | None]]) -> None:
    """Answer one message after the other, until the client says goodbye. Raises WebSocketDisconnect if it goes
    away, which ends what it waits for.
    """
    messages: asyncio.Queue[str] = asyncio.Queue(_WAITING)

    async def read() -> None:
        while True:
            await messages.put(await socket.receive_text())

    async def work() -> None:
        while (reply := await answer(await messages.get())) is not None:
            await socket.send_text(reply)

    tasks = [asyncio.create_task(read()), asyncio.create_task(work())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for each in done:
        each.result()


class Message(msgspec.Struct, frozen=True):
    type: str = ""
    data: dict[str, Json] = {}


class Action(msgspec.Struct, frozen=True):
    type: str = ""
    tool_name: str = ""
    arguments: dict[str, Json] = {}


async def _answer(sessions: Sessions, entry: Entry, text: str) -> bytes | None:
    """The reply to a message; None to end the conversation."""
    try:
        message = msgspec.json.decode(text, type=Message)
        match message.type:
            case "reset":
                result = await entry.session.reset(msgspec.convert(message.data, ResetArguments))
                return _reply("observation", result)
            case "step":
                return _reply("observation", await _step(entry, msgspec.convert(message.data, Action)))
            case "state":
                return _reply("state", entry.session.state())
            case "mcp":
                request = msgspec.convert(message.data, RpcRequest)
                return _reply("mcp", await _rpc(sessions, entry, request))
            case "close":
                return None
        raise RefusedError("UNKNOWN_TYPE", f"Unknown message type: {message.type}")
    except RefusedError as error:
        return _refusal(error)
    except msgspec.ValidationError as error:
        return _refusal(RefusedError("VALIDATION_ERROR", f"Invalid message: {error}"))
    except (msgspec.DecodeError, RecursionError) as error:
        return _refusal(RefusedError("INVALID_JSON", f"Invalid JSON: {error}"))
    except AppError as error:
        return _refusal(RefusedError("EXECUTION_ERROR", public_text(error)))


async def _step(entry: Entry, action: Action) -> object:
    if action.type == "list_tools":
        return {"observation": {"tools": list(TOOLS.values()), "metadata": {}}, "reward": None, "done": False}
    if action.type != "call_tool":
        raise RefusedError("VALIDATION_ERROR", "an action is of the type call_tool or list_tools")
    return await entry.session.call(action.tool_name, action.arguments)


def _reply(kind: str, data: object) -> bytes:
    return msgspec.json.encode({"type": kind, "data": data})


def _refusal(error: RefusedError) -> bytes:
    return _reply("error", {"message": str(error), "code": error.kind, **error.details})


class RpcRequest(msgspec.Struct, frozen=True):
    """JSON-RPC 2.0."""

    method: str
    params: dict[str, Json] = {}
    id: str | int | None = None
    jsonrpc: str = "2.0"


class RpcParameters(msgspec.Struct, frozen=True):
    session_id: str | None = None
    name: str = ""
    arguments: dict[str, Json] = {}


_RPC_CODES: Final = {
    "CAPACITY_REACHED": -32000,
    "EXECUTION_ERROR": -32603,
    "SESSION_ERROR": -32602,
    "UNKNOWN_TYPE": -32601,
    "VALIDATION_ERROR": -32602,
}


async def _rpc(sessions: Sessions, entry: Entry | None, request: RpcRequest) -> dict[str, Json]:
    """`entry` is the session of the connection, if there is one."""
    head: dict[str, Json] = {"jsonrpc": "2.0", "id": request.id}
    try:
        return {**head, "result": await _rpc_result(sessions, entry, request)}
    except RefusedError as error:
        refused = error
    except msgspec.ValidationError as error:
        refused = RefusedError("VALIDATION_ERROR", f"Invalid params: {error}")
    except AppError as error:
        refused = RefusedError("EXECUTION_ERROR", public_text(error))
    return {**head, "error": {"code": _RPC_CODES[refused.kind], "message": str(refused), "data": refused.details}}


async def _rpc_result(sessions: Sessions, entry: Entry | None, request: RpcRequest) -> Json:
    given = msgspec.convert(request.params, RpcParameters)
    match request.method:
        case "openenv/session/create":
            return {"session_id": (entry or sessions.open()).id}
        case "openenv/session/close":
            closed = sessions.find(given.session_id)
            closed.ends = True  # with its connection, if it has one
            if not closed.attached:
                await sessions.close(closed)
            return {"session_id": closed.id, "closed": not closed.attached, "closing": closed.attached}
        case "tools/list":
            return {"tools": [{**each, "inputSchema": each["input_schema"]} for each in TOOLS.values()]}
        case "tools/call":
            called = entry or sessions.find(given.session_id)
            result = await called.session.call(given.name, given.arguments)
            error = result.observation["error"]
            if error is not None:
                raise RefusedError("EXECUTION_ERROR", error["message"])
            return {**result.observation["result"], "meta": {"reward": result.reward, "done": result.done}}
    raise RefusedError("UNKNOWN_TYPE", f"Method not found: {request.method}")


def _explain(_: AnyRequest, error: AppError) -> Response[dict[str, str]]:
    return Response({"detail": public_text(error)}, status_code=error.status)


def _decline(_: AnyRequest, error: HTTPException) -> Response[dict[str, str]]:
    return Response({"detail": error.detail.lower()}, status_code=error.status_code)
