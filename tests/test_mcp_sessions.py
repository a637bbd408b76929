"""Sessions with MCP servers: how many there are, when they end, and who goes on using them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
import pytest

from app.gateway.http_client import open_client
from app.gateway.mcp_client import connection_pool
from app.gateway.mcp_client.connection_pool import McpServers
from app.gateway.mcp_client.mcp_calls import McpCaller
from app.gateway.wire_request import WireRequest
from app.records import Json
from tests.ledger_project import until
from tests.notebook_server import Notebook

PROJECT = UUID(int=1)


@asynccontextmanager
async def servers() -> AsyncIterator[McpServers]:
    async with open_client(allow_private_hosts=True) as client, McpServers(client) as opened:
        yield opened


async def called(
    opened: McpServers, url: str, principal: str, tool: str = "readNotes", **arguments: Json
) -> object:
    caller = McpCaller(opened, PROJECT, principal, timeout=30)
    content = msgspec.json.encode({"name": tool, "arguments": arguments})
    return (await caller.send(WireRequest("tools/call", url, {}, content))).value


async def test_a_session_that_is_taken_up_again_while_others_end_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_pool, "_SWEEP_SECONDS", 0.01)
    notebook = Notebook(older=True)
    async with notebook.listening() as url, servers() as opened:
        for principal in ("iris", "omar"):
            await called(opened, url, principal)
        notebook.lets_go.clear()
        notebook.answers.clear()
        monkeypatch.setattr(connection_pool, "_IDLE_SECONDS", 0)
        await until(lambda: notebook.ended > 0)
        write = asyncio.create_task(called(opened, url, "omar", "write", text="once"))
        await until(lambda: bool(notebook.notes))
        notebook.lets_go.set()
        await until(lambda: notebook.ended == 2)
        notebook.answers.set()
        assert await write == {"count": 1}


async def test_a_call_is_answered_in_a_session_that_another_call_found_forgotten() -> None:
    notebook = Notebook(older=True)
    async with notebook.listening() as url, servers() as opened:
        notebook.answers.clear()
        write = asyncio.create_task(called(opened, url, "iris", "write", text="once"))
        await until(lambda: bool(notebook.notes))
        notebook.forget = True
        assert await called(opened, url, "iris") == {"result": "once"}
        assert (notebook.sessions, notebook.ended) == (2, 0)
        notebook.answers.set()
        assert await write == {"count": 1}
        await until(lambda: notebook.ended == 1)
