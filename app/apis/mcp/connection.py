"""The sessions of a process with MCP servers: one for each server, project and principal, while it is in use.

Each runs in a task of its own: the SDK's parts begin and end in the same one. All that the SDK's HTTP client
sends goes through the gateway's client, within its limits; servers that are commands of this machine are those
that the operator names, each in bubblewrap.
"""

import asyncio
import shutil
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import Context, ContextVar
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar
from uuid import UUID

import httpx
import httpx2
import mcp_types as types
import msgspec
import structlog
from mcp.client.session import ClientSession, IncomingMessage, MessageHandlerFnT
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError

from app.apis.calls.http_call import REDIRECTS, Sending, WireRequest, redirect_refusal
from app.apis.media_types import EVENT_STREAM, bare
from app.base.errors import HostError, NoConnectionError, SettingError, ShortageError
from app.base.loop import Loop, Looping
from app.base.processes import shortage_of
from app.base.untrusted import JsonError, decode_json
from app.base.untrusted_http import BodyError, read_body
from app.base.values import CallResponse, Json
from app.sandbox.protocol import RefusalError

MAX_BYTES: Final = 3 << 20  # of one answer, or of all notifications of a session
SCHEME: Final = "stdio:"
_SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl")
_TMP: Final = "/tmp"  # of the sandbox: an empty one in memory
_SESSION = "mcp-session-id"
_KEPT = ("content-type", "location", _SESSION)  # of an answer's headers
_OWN = {"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
_ADDED = {"Accept-Encoding": "identity", "User-Agent": "sage-server"}
_ERROR_VALUES, _ERROR_DEPTH = 1_000, 20
_UNANSWERED = 502
_DENIED = (401, 403)
_UNCONNECTED = (httpx.ConnectError, httpx.ConnectTimeout, NoConnectionError)
log = structlog.get_logger(__name__)
E = TypeVar("E", bound=BaseException)
_END_SECONDS = 3.0  # in which a session may end by itself
_TOLD_SECONDS = 0.5  # in which changes are told once
OpenStreams = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]
"""Opens the SDK's streams of messages from and to the server."""
OnChange = Callable[[], Awaitable[None]]
_IDLE_SECONDS = 60.0  # after which a session is closed
_SWEEP_SECONDS = 5.0
MAX_SESSIONS = 200
"""Of a process. Each may hold a connection all the time, for what the server tells of itself."""
Changed = Callable[["McpTarget"], Awaitable[None]]
"""Called when a server says that its tools have changed."""


class ForgottenError(Exception):
    """The server does not know the session any more; it did nothing."""


class AccessRefusedError(RefusalError):
    """The server answered 401 or 403."""

    def __init__(self, message: str, status: int, challenge: str) -> None:
        super().__init__(message, CallResponse(status=status), challenge)


class Exchange(msgspec.Struct, eq=False):
    """A request and its answers: their size, what is told before it goes out, and why it failed below JSON-RPC.

    The SDK's tasks run in the context of the caller who caused them, so that `exchange` there is this one.
    """

    bytes_left: int
    seconds: float  # for each part of an answer
    sending: Sending | None = None
    request: WireRequest | None = None  # the call, if it is one: what may become of it when it is redirected
    endless: bool = False  # an answer that goes on while the session is open
    failure: HostError | None = None  # of the latest HTTP request
    unreachable: bool = False  # the latest HTTP request got no answer
    forgotten: bool = False  # the server does not know the session any more, so it did nothing
    withheld: BaseException | None = None  # what `sending` raised, or ShortageError: nothing was sent


exchange: ContextVar[Exchange] = ContextVar("exchange")


class McpCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that speaks MCP on its standard input and output, and the paths that it may use."""

    command: list[str]
    readable: list[str] = []
    writable: list[str] = []
    environment: dict[str, str] = {}
    network: bool = False  # to any address


def read_commands(path: str) -> dict[str, McpCommand]:
    """The commands of a TOML file, by name; none without a file. Raises SettingError."""
    if not path:
        return {}
    try:
        commands = msgspec.convert(tomllib.loads(Path(path).read_text()), dict[str, McpCommand])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise SettingError(f"SAGE_MCP_COMMANDS={path!r}: {error}") from error
    if empty := [name for name, each in commands.items() if not each.command]:
        raise SettingError(f"SAGE_MCP_COMMANDS={path!r}: {empty[0]}: `command` is empty")
    return commands


@asynccontextmanager
async def command_streams(name: str, commands: Mapping[str, McpCommand]) -> AsyncIterator[tuple[Any, Any]]:
    """The SDK's streams of a new process. Raises HostError if it is not permitted, or cannot be confined."""
    if name not in commands:
        permitted = ", ".join(sorted(commands)) or "none"
        raise HostError("ApiError", f"{SCHEME}{name} is not in SAGE_MCP_COMMANDS, which names {permitted}")
    words = _confined(commands[name])
    with open("/dev/null", "w") as errors:  # noqa: ASYNC230 - it is a device
        async with stdio_client(StdioServerParameters(command=words[0], args=words[1:]), errlog=errors) as streams:
            yield streams


def _confined(server: McpCommand) -> list[str]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise HostError("ApiError", "MCP servers run as commands only inside bubblewrap: install bwrap")
    binds = [word for path in _SYSTEM for word in ("--ro-bind-try", path, path)]
    binds += [word for path in server.readable for word in ("--ro-bind", path, path)]
    binds += [word for path in server.writable for word in ("--bind", path, path)]
    names = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": _TMP, **server.environment}
    environment = [word for name, value in names.items() for word in ("--setenv", name, value)]
    network = ("--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf") if server.network else ()
    return [
        bwrap,
        *("--unshare-all", *network, "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", _TMP),
        *binds,
        *environment,
        *("--chdir", "/", "--", *server.command),
    ]


class HttpBridge(httpx2.AsyncBaseTransport):
    """Failures are noted in the request's exchange, and become an answer: an exception would end the session."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        ours = exchange.get()
        if request.method == "POST":
            ours.failure, ours.unreachable = None, False
        try:
            response = await self._client.send(await _outgoing(request, ours), stream=True, follow_redirects=False)
        except (HostError, httpx.HTTPError, httpx.InvalidURL) as error:
            ours.unreachable = True
            if isinstance(error, _UNCONNECTED) and (shortage := shortage_of(error)) is not None:
                ours.withheld = ShortageError(shortage)
            reason = f"the server cannot be reached: {_reason(error)}"
            return _unanswered(request, ours, reason, connected=not isinstance(error, _UNCONNECTED))
        try:
            return await _answer(request, response, ours)
        except (BodyError, httpx.HTTPError) as error:
            await response.aclose()
            return _unanswered(request, ours, f"the answer {_reason(error)}")


async def _outgoing(request: httpx2.Request, ours: Exchange) -> httpx.Request:
    read = None if ours.endless or request.method == "GET" else ours.seconds
    extensions: dict[str, object] = {"timeout": httpx.Timeout(ours.seconds, read=read).as_dict()}
    if ours.sending is not None and request.method == "POST":
        extensions["trace"] = _before(ours.sending, ours)
    headers = {name: text for name, text in request.headers.items() if name.lower() not in _OWN}
    content = await request.aread()
    return httpx.Request(
        request.method, str(request.url), headers=headers | _ADDED, content=content, extensions=extensions
    )


def _before(sending: Callable[[], Awaitable[None]], ours: Exchange) -> Callable[[str, object], Awaitable[None]]:
    """A tracer of httpcore's. What `sending` raises is kept for the caller: here it would end the session."""

    async def trace(event: str, _: object) -> None:
        if not event.endswith(".send_request_headers.started"):
            return
        try:
            await sending()
        except Exception as error:
            ours.withheld = error
            raise httpx.ConnectError("it was not sent") from error

    return trace


async def _answer(request: httpx2.Request, response: httpx.Response, ours: Exchange) -> httpx2.Response:
    headers = {name: response.headers[name] for name in _KEPT if name in response.headers}
    if request.method == "POST" and ours.request is not None and response.status_code in REDIRECTS:
        ours.failure = redirect_refusal(ours.request, response)
        if ours.failure is not None:
            headers.pop("location", None)
    if response.status_code == 404 and _SESSION in request.headers:
        ours.forgotten = True
    if response.is_success and bare(response.headers.get("content-type", "")) == EVENT_STREAM:
        stream = _Events(response, ours)
        return httpx2.Response(response.status_code, headers=headers, stream=stream, request=request)
    body = await read_body(response, ours.bytes_left)
    await response.aclose()
    ours.bytes_left -= len(body)
    text = f"Response status code is {response.status_code}: {body.decode(errors='replace')}"
    if request.method == "POST" and response.status_code in _DENIED:
        challenge = response.headers.get("www-authenticate", "")
        ours.failure = AccessRefusedError(text, response.status_code, challenge)
    elif request.method == "POST" and response.is_error and not _is_rpc_error(body):
        ours.failure = HostError("ApiError", text)
    return httpx2.Response(response.status_code, headers=headers, content=body, request=request)


class _Events(httpx2.AsyncByteStream):
    """An event stream within the exchange's size. One that breaks ends, and the SDK misses its answer."""

    def __init__(self, response: httpx.Response, ours: Exchange) -> None:
        self._response = response
        self._exchange = ours

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._response.aiter_raw():
                self._exchange.bytes_left -= len(part)
                if self._exchange.bytes_left < 0:
                    self._exchange.failure = HostError("ApiError", "the answer is too large; ask for less at once")
                    return
                yield part
        except httpx.HTTPError as error:
            self._exchange.failure = HostError("ApiError", f"the answer was cut off: {_reason(error)}")

    async def aclose(self) -> None:
        await self._response.aclose()


def _is_rpc_error(body: bytes) -> bool:
    try:
        answer = decode_json(body, max_values=_ERROR_VALUES, max_depth=_ERROR_DEPTH)
    except JsonError:
        return False
    return isinstance(answer, dict) and "jsonrpc" in answer and isinstance(answer.get("error"), dict)


def _unanswered(
    request: httpx2.Request, ours: Exchange, reason: str, *, connected: bool = True
) -> httpx2.Response:
    if request.method == "POST":
        ours.failure = HostError("ApiError", reason) if connected else NoConnectionError(reason)
    return httpx2.Response(_UNANSWERED, request=request)


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, HostError) else str(error) or type(error).__name__


class McpConnection:
    """Opened by `open`, and unusable once `alive` is false."""

    def __init__(self, streams: OpenStreams, *, seconds: float, on_change: OnChange | None = None) -> None:
        self._streams = streams
        self._seconds = seconds
        self._on_change = on_change
        self._session: _RawSession | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told = -_TOLD_SECONDS  # when a change was told last, on the clock of the machine

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done() and not self._ended.is_set()

    @property
    def session(self) -> ClientSession:
        """What was agreed on with the server."""
        assert self._session is not None
        return self._session

    async def open(self) -> None:
        """Raises HostError, an ApiError, if no MCP server answers in time."""
        self._task = asyncio.create_task(self._hold(), name="MCP session")
        self._task.add_done_callback(_report)
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            await self.close()
            raise HostError("ApiError", f"no answer within {self._seconds:g} seconds") from error
        except BaseException:
            await self.close()
            raise

    async def ask(self, method: str, params: Mapping[str, Json], ours: Exchange) -> dict[str, Json]:
        """The result of a JSON-RPC request, unchecked.

        Raises HostError, an ApiError, ForgottenError, and what `sending` of the exchange raised.
        """
        token = exchange.set(ours)
        try:
            return await self._ask(method, params)
        except MCPError as error:
            if ours.withheld is not None:
                raise ours.withheld from None
            if ours.forgotten:
                raise ForgottenError from error
            raise ours.failure or _refusal(error) from error
        finally:
            exchange.reset(token)

    async def close(self) -> None:
        self._ended.set()
        if self._task is None:
            return
        _, late = await asyncio.wait({self._task}, timeout=_END_SECONDS)
        for task in late:
            task.cancel()
            await asyncio.wait({task})

    async def _ask(self, method: str, params: Mapping[str, Json]) -> dict[str, Json]:
        assert self._session is not None
        try:
            return await self._session.raw(method, params)
        except MCPError as error:
            if error.code != types.HEADER_MISMATCH:
                raise
            with suppress(MCPError, ValueError):  # the server wants headers that its listing names
                await self._session.list_tools()
            return await self._session.raw(method, params)

    async def _hold(self) -> None:
        """Keep the session open until it is closed, or breaks."""
        ours = Exchange(MAX_BYTES, self._seconds)
        exchange.set(ours)
        failure: BaseException | None = None
        try:
            async with (
                self._streams() as (read, write),
                _RawSession(_Messages(read, self._ended), write, self._notified) as session,
            ):
                await _agree(session, ours)
                self._session = session
                self._ready.set_result(None)
                await self._attend(session)
        except* HostError as group:
            failure = _first(group)
        except* MCPError as group:
            failure = ours.withheld or ours.failure or _refusal(_first(group))
        except* (RuntimeError, ValueError, OSError, httpx2.HTTPError) as group:
            failure = ours.failure or HostError("ApiError", f"it does not speak MCP: {_text(_first(group))}")
            if (shortage := shortage_of(group)) is not None:  # of a command that cannot be started
                failure = ShortageError(shortage)
        finally:
            self._ended.set()
            if not self._ready.done():
                self._ready.set_exception(failure or HostError("ApiError", "the session ended as it began"))
                self._ready.exception()  # it is retrieved, also if nobody waits any more

    async def _attend(self, session: "_RawSession") -> None:
        """Wait for the end, and for news of the tools, if the server offers to tell."""
        capabilities = session.server_capabilities
        tells = capabilities and capabilities.tools and capabilities.tools.list_changed
        if self._on_change is None or not tells:
            await self._ended.wait()
            return
        listening = asyncio.create_task(self._listen(session))
        try:
            await self._ended.wait()
        finally:
            listening.cancel()
            await asyncio.wait({listening})

    async def _listen(self, session: "_RawSession") -> None:
        """Of servers since 2026-07-28; older ones notify without being asked."""
        exchange.set(Exchange(MAX_BYTES, self._seconds, endless=True))
        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
            async with listen(session, tools_list_changed=True) as changes:
                async for _ in changes:
                    await self._changed()

    async def _notified(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            await self._changed()

    async def _changed(self) -> None:
        """Many changes at once are told once: what is done about them comes later."""
        now = time.monotonic()
        if self._on_change is not None and now - self._told > _TOLD_SECONDS:
            self._told = now
            await self._on_change()


class _Messages:
    """The SDK's stream of messages from the server. Its end is known before the calls that wait learn of it."""

    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Context | None:
        """Of the sender of the latest message, in which the SDK handles it."""
        return getattr(self._stream, "last_context", None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended.set()
        await self._stream.aclose()

    def __aiter__(self) -> Any:
        return self._stream


class _RawSession(ClientSession):
    """Does not check results: the SDK would refuse all tools for one of them, and run foreign patterns."""

    def __init__(self, read: Any, write: Any, notified: MessageHandlerFnT) -> None:
        about = types.Implementation(name="sage-server", version=version("sage-server"))
        super().__init__(read, write, message_handler=notified, client_info=about)

    async def raw(self, method: str, params: Mapping[str, Json]) -> dict[str, Json]:
        data: dict[str, Any] = {"method": method, "params": dict(params)}
        options: CallOptions = {}
        self._stamp(data, options)
        return await self._dispatcher.send_raw_request(method, data["params"], options)


async def _agree(session: ClientSession, ours: Exchange) -> None:
    """On the version of the protocol: servers before 2026-07-28 do not know `server/discover`."""
    try:
        await session.discover()
        return
    except (MCPError, RuntimeError, ValueError):
        if ours.unreachable:
            raise
    try:
        await session.initialize()
    except MCPError as error:
        if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
            raise
        await session.discover()  # a new server that was slow to start: it has read the first question since


def _refusal(error: BaseException) -> HostError:
    return HostError("ApiError", f"the server refuses it: {_text(error)}")


def _first(group: BaseExceptionGroup[E]) -> E:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _text(error: BaseException) -> str:
    return error.error.message if isinstance(error, MCPError) else str(error) or type(error).__name__


def _report(task: asyncio.Task[None]) -> None:
    """Of what the SDK should not raise. The session is not used again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("an MCP session broke", exc_info=error)


class McpTarget(NamedTuple):
    """Whose session it is, and with which server. `headers` are its credentials."""

    url: str
    project: UUID | None = None
    principal: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def is_command(self) -> bool:
        return self.url.startswith(SCHEME)


class _Entry:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.connection: McpConnection | None = None
        self.users = 0
        self.used_at = time.monotonic()


class McpServers(Looping):
    """Opens sessions through the gateway's client, and as commands that the operator permits.

    Beyond MAX_SESSIONS, the one that was idle longest is closed for a new one.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        commands: Mapping[str, McpCommand] | None = None,
        changed: Changed | None = None,
    ) -> None:
        self._client = client
        self._commands = commands or {}
        self._changed = changed
        self._entries: dict[McpTarget, _Entry] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._loop = Loop("close idle MCP sessions", self._sweep, _SWEEP_SECONDS)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        entries, self._entries = self._entries, {}
        for each in entries.values():
            self._close(each.connection)
        await asyncio.gather(*self._closing)

    def connect(self, target: McpTarget, seconds: float, on_change: OnChange | None = None) -> McpConnection:
        """A session that is nobody else's: enter it."""
        return McpConnection(self._streams(target), seconds=seconds, on_change=on_change)

    @asynccontextmanager
    async def session(self, target: McpTarget, seconds: float) -> AsyncIterator[McpConnection]:
        """The session of the target, opened if there is none; not closed while it is in use. Raises HostError."""
        entry = self._entries.get(target) or self._new_entry(target)
        entry.users += 1
        try:
            yield await self._opened(entry, target, seconds)
        finally:
            entry.users -= 1
            entry.used_at = time.monotonic()
            if not entry.users and self._entries.get(target) is not entry:
                self._close(entry.connection)

    def forget(self, target: McpTarget, connection: McpConnection) -> None:
        """The server has forgotten the session: the next one is new. This one is closed when nobody uses it."""
        entry = self._entries.get(target)
        if entry is not None and entry.connection is connection:
            del self._entries[target]

    def _new_entry(self, target: McpTarget) -> _Entry:
        if len(self._entries) >= MAX_SESSIONS:
            idle = self._idle()
            if not idle:
                raise HostError("ApiError", f"all {MAX_SESSIONS} sessions with MCP servers are in use; try again")
            self._close(self._entries.pop(idle[0]).connection)
        entry = self._entries[target] = _Entry()
        return entry

    async def _opened(self, entry: _Entry, target: McpTarget, seconds: float) -> McpConnection:
        async with entry.lock:
            if entry.connection is None or not entry.connection.alive:
                opened = self.connect(target, seconds, self._tell(target))
                await opened.open()
                self._close(entry.connection)
                entry.connection = opened
            return entry.connection

    def _tell(self, target: McpTarget) -> OnChange | None:
        changed = self._changed
        if changed is None:
            return None

        async def tell() -> None:
            await changed(target)

        return tell

    def _streams(self, target: McpTarget) -> OpenStreams:
        if target.is_command:
            return lambda: command_streams(target.url.removeprefix(SCHEME), self._commands)
        return lambda: _http_streams(self._client, target)

    async def _sweep(self) -> None:
        before = time.monotonic() - _IDLE_SECONDS
        for key in self._idle():
            if self._entries[key].used_at < before:
                self._close(self._entries.pop(key).connection)

    def _idle(self) -> list[McpTarget]:
        """The longest idle first."""
        keys = [key for key, each in self._entries.items() if not each.users]
        return sorted(keys, key=lambda key: self._entries[key].used_at)

    def _close(self, connection: McpConnection | None) -> None:
        """In the background: a server may take seconds."""
        if connection is not None:
            closing = asyncio.create_task(connection.close(), name="close an MCP session")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


@asynccontextmanager
async def _http_streams(client: httpx.AsyncClient, target: McpTarget) -> AsyncIterator[tuple[object, object]]:
    async with (
        httpx2.AsyncClient(transport=HttpBridge(client), headers=dict(target.headers), trust_env=False) as ours,
        streamable_http_client(target.url, http_client=ours, max_sse_event_size=MAX_BYTES) as streams,
    ):
        yield streams
