"""Sessions with MCP servers: how many there are, when they end, and who goes on using them."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from app.apis.calls.http_call import WireRequest
from app.apis.calls.network import open_client
from app.apis.mcp import connection as connection
from app.apis.mcp.calls import McpCaller
from app.apis.mcp.connection import McpCommand, McpServers, McpTarget
from app.base.errors import HostError
from app.base.settings import Settings
from app.base.values import Json
from app.processes.runner import open_mcp_servers
from tests.support.ledger_project import until
from tests.support.notebook_server import Notebook

OURS, THEIRS = UUID(int=1), UUID(int=2)


@asynccontextmanager
async def servers(**commands: McpCommand) -> AsyncIterator[McpServers]:
    async with open_client(allow_private_hosts=True) as client, McpServers(client, commands) as opened:
        yield opened


async def called(
    opened: McpServers, url: str, principal: str, tool: str = "readNotes", project: UUID = OURS, **arguments: Json
) -> object:
    caller = McpCaller(opened, project, principal, timeout=30)
    content = msgspec.json.encode({"name": tool, "arguments": arguments})
    return (await caller.send(WireRequest("tools/call", url, {}, content))).value


async def test_idle_sessions_leave_connections_for_the_calls_of_a_runner() -> None:
    notebook, settings = Notebook(older=True), Settings(max_tasks_in_flight=1, allow_private_hosts=True)
    async with notebook.listening() as url, open_mcp_servers(settings) as opened:
        for number in range(12):
            assert await called(opened, url, f"person {number}") == {"result": ""}
    assert notebook.sessions == 12


async def test_the_session_that_was_idle_longest_makes_room_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_SESSIONS", 2)
    notebook = Notebook(older=True)
    async with notebook.listening() as url, servers() as opened:
        for principal in ("iris", "omar", "iris"):
            await called(opened, url, principal)
        await called(opened, url, "ana", project=THEIRS)
        await until(lambda: notebook.ended == 1)
        await called(opened, url, "iris")
        assert notebook.sessions == 3
        await called(opened, url, "omar")
        assert notebook.sessions == 4


async def test_sessions_in_use_make_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_SESSIONS", 2)
    notebook = Notebook()
    async with notebook.listening() as url, servers() as opened:
        notebook.answers.clear()
        writes = [asyncio.create_task(called(opened, url, each, "write", text=each)) for each in ("iris", "omar")]
        await until(lambda: len(notebook.notes) == 2)
        with pytest.raises(HostError, match="all 2 sessions with MCP servers are in use"):
            await called(opened, url, "ana")
        notebook.answers.set()
        assert await asyncio.gather(*writes) == [{"count": 2}] * 2
        noted: Any = await called(opened, url, "ana")
        assert sorted(noted["result"].splitlines()) == ["iris", "omar"]


async def test_a_session_that_is_taken_up_again_while_others_end_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_SWEEP_SECONDS", 0.01)
    notebook = Notebook(older=True)
    async with notebook.listening() as url, servers() as opened:
        for principal in ("iris", "omar"):
            await called(opened, url, principal)
        notebook.lets_go.clear()
        notebook.answers.clear()
        monkeypatch.setattr(connection, "_IDLE_SECONDS", 0)
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


_PYTHON = os.path.realpath(sys.executable)
_COMMAND = """
import json, sys
for line in sys.stdin:
    question = json.loads(line)
    method, tool = question["method"], question.get("params", {}).get("name")
    if tool == "end":
        sys.exit()
    if method == "initialize":
        version = question["params"]["protocolVersion"]
        about = {"name": "mortal", "version": "1"}
        answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
    elif method == "tools/call":
        answer = {"result": {"content": [{"type": "text", "text": tool}]}}
    else:
        answer = {"error": {"code": -32601, "message": "unknown"}}
    if "id" in question:
        print(json.dumps({"jsonrpc": "2.0", "id": question["id"], **answer}), flush=True)
    if tool == "last":
        sys.exit()
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_a_command_that_ends_is_started_again_for_the_next_call(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(_COMMAND)
    command = McpCommand(command=[_PYTHON, str(script)], readable=[sys.base_prefix, str(script)])
    url = "stdio:mortal"
    async with servers(mortal=command) as opened:
        assert await called(opened, url, "iris", "look") == "look"
        with pytest.raises(HostError, match="Connection closed"):
            await called(opened, url, "iris", "end")
        assert await called(opened, url, "iris", "look") == "look"
        async with opened.session(McpTarget(url, OURS, "iris"), 30) as connection:
            assert await called(opened, url, "iris", "last") == "last"
            await until(lambda: not connection.alive)
        assert await called(opened, url, "iris", "look") == "look"
