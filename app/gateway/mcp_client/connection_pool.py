"""The sessions of a process with MCP servers: one for each server, project and principal, while it is in use."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple, Self
from uuid import UUID

import httpx
import httpx2
from mcp.client.streamable_http import streamable_http_client

from app.base.errors import HostError
from app.base.loop import Loop
from app.gateway.mcp_client.connection import McpConnection, OnChange, OpenStreams
from app.gateway.mcp_client.exchange import MAX_BYTES
from app.gateway.mcp_client.http_bridge import HttpBridge
from app.gateway.mcp_client.mcp_commands import SCHEME, McpCommand, command_streams

_IDLE_SECONDS = 60.0
_SWEEP_SECONDS = 5.0
MAX_SESSIONS = 200
"""Of a process. Each may hold a connection all the time, for what the server tells of itself."""

Changed = Callable[["McpTarget"], Awaitable[None]]
"""Called when a server says that its tools have changed."""


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


class McpServers:
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
        self._sweeping = Loop("close idle MCP sessions", self._sweep, _SWEEP_SECONDS)

    async def __aenter__(self) -> Self:
        self._sweeping.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sweeping.stop()
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
