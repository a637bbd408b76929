"""An MCP server of the SDK in this process: a notebook, served as servers do now or as older ones did."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from tests.support.listening_app import listening_app

READ, ADD, ERASE = (
    ToolAnnotations(read_only_hint=True),
    ToolAnnotations(destructive_hint=False),
    ToolAnnotations(destructive_hint=True, idempotent_hint=True),
)
_DISCOVER, _CALL = b'"server/discover"', b'"tools/call"'


class Notebook:
    """`notes` were written, in order. `older`: as servers before 2026-07-28, with sessions.

    `forget` makes the server answer the next call of a session as if it had been restarted; `requests` are the
    bodies received, `tokens` the credentials that came with them. `ended` counts the sessions that the
    client ended; each end is answered once `lets_go` is set.
    """

    def __init__(self, *, older: bool = False) -> None:
        self.notes: list[str] = []
        self.requests: list[bytes] = []
        self.tokens: list[str] = []
        self.older = older
        self.forget = False
        self.ended = 0
        self.lets_go = asyncio.Event()
        self.lets_go.set()
        self.answers = asyncio.Event()
        self.answers.set()
        self.server = MCPServer(
            "notebook", instructions="The notes of a person.", version="1", log_level="CRITICAL"
        )
        self._add_tools()

    @property
    def sessions(self) -> int:
        """How many were begun."""
        return sum(b'"initialize"' in each for each in self.requests)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yields the URL of the endpoint."""
        application = self.server.streamable_http_app()

        async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            body = await _body(receive)
            headers = dict(scope["headers"])
            self.requests.append(body)
            self.tokens.append(headers.get(b"authorization", b"").decode())
            if scope["method"] == "DELETE":
                self.ended += 1
                await self.lets_go.wait()
            if self.older and _DISCOVER in body:
                await _refuse(send, 400)
            elif self.forget and b"mcp-session-id" in headers and _CALL in body:
                self.forget = False
                await _refuse(send, 404)
            else:
                await application(scope, _replay(body, receive), send)

        async with listening_app(app, timeout_graceful_shutdown=0) as url:
            yield f"{url}/mcp"

    def _add_tools(self) -> None:
        @self.server.tool(title="Write", annotations=ADD)
        async def write(text: str, times: int = 1) -> dict[str, int]:
            """Write a note."""
            self.notes += [text] * times
            await self.answers.wait()
            return {"count": len(self.notes)}

        @self.server.tool(annotations=READ)
        def readNotes() -> str:  # noqa: N802 - as servers name them
            """The notes, one a line."""
            return "\n".join(self.notes)

        @self.server.tool(annotations=ERASE, structured_output=False)
        def erase() -> str:
            self.notes.clear()
            return "erased"

        @self.server.tool()
        def tear(page: int) -> str:
            raise ToolError(f"there is no page {page}")

        @self.server.tool()
        async def extend(ctx: Context[Any, Any]) -> str:
            """Have one more tool."""
            self.server.add_tool(lambda: "thin", name="underline", description="underline it")
            await ctx.notify_tools_changed()
            await ctx.session.send_tool_list_changed()
            return "done"

        @self.server.resource("notes://all")
        def all_notes() -> str:
            return "; ".join(self.notes)


async def _body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def _replay(body: bytes, receive: Any) -> Any:
    sent = False

    async def again() -> dict[str, Any]:
        nonlocal sent
        if sent:
            ended: dict[str, Any] = await receive()
            return ended
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(send: Any, status: int) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": "no"}).encode()})
