"""One session with an MCP server, in a task of its own: the SDK's parts begin and end in the same one."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from importlib.metadata import version
from typing import Any, Self, TypeVar

import httpx2
import mcp_types as types
import structlog
from mcp.client.session import ClientSession, IncomingMessage, MessageHandlerFnT
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError

from app.base.errors import HostError, ShortageError
from app.base.processes import shortage_of
from app.base.values import Json
from app.gateway.mcp_client.exchange import MAX_BYTES, Exchange, ForgottenError, exchange

log = structlog.get_logger(__name__)

E = TypeVar("E", bound=BaseException)
_END_SECONDS = 3.0
_TOLD_SECONDS = 0.5

OpenStreams = Callable[[], AbstractAsyncContextManager[tuple[Any, Any]]]
"""Opens the SDK's streams of messages from and to the server."""
OnChange = Callable[[], Awaitable[None]]


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
        if self._on_change is None or not (
            capabilities and capabilities.tools and capabilities.tools.list_changed
        ):
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
        ours = Exchange(MAX_BYTES, self._seconds)
        ours.endless = True
        exchange.set(ours)
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
    except (MCPError, RuntimeError, ValueError):
        if ours.unreachable:
            raise
        await _initialize(session)


async def _initialize(session: ClientSession) -> None:
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
