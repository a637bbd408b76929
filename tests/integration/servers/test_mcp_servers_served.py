"""MCP servers that others wrote, installed from their registries, called by the code of a real runner's task."""

import asyncio
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest

from app.apis.calls.network import open_client
from app.apis.mcp.connection import McpCommand, McpServers
from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks.runner import Runner
from tests.integration.servers.installed import miss
from tests.support.api_app import ApiApp, open_api_app
from tests.support.ledger import Ledger
from tests.support.ledger_project import OPTIONS, LedgerProject, until
from tests.support.processes import free_ports
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer

VERSION = "2026.8.31"
NODE_SERVERS = ("everything", "filesystem", "memory")
PYTHON_SERVERS = ("mcp-server-time==2026.10.19", "tzlocal==5.3.1", "tzdata==2026.3")

pytestmark = pytest.mark.slow

TURNS = [
    """
found = {"echo": apis.everything.echo(message="hello"), "sum": apis.everything.get_sum(a=2, b=3)}
found["weather"] = apis.everything.get_structured_content(location="New York")
found["resources"] = len(apis.everything.list_resources()) > 0
try:
    apis.everything.get_sum(a="two", b=3)
except Exception as error:
    found["refused"] = f"{type(error).__name__}: {error}"
""",
    """
apis.files.write_file(path=f"{directory}/note.txt", content="a note")
found["file"] = apis.files.read_text_file(path=f"{directory}/note.txt")
found["listed"] = apis.files.list_directory(path=directory)
try:
    apis.files.read_text_file(path="/etc/passwd")
except Exception as error:
    found["outside"] = f"{type(error).__name__}: {error}"
""",
    """
apis.memory.create_entities(entities=[{"name": "iris", "entityType": "person", "observations": ["likes tea"]}])
found["graph"] = [each["name"] for each in apis.memory.read_graph()["entities"]]
""",
    """
found["time"] = apis.clock.convert_time(source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")
apis.supervisor.complete_task(answer=found)
""",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the servers of both registries, each by its client."""
    for program, purpose in (("npm", "installs the servers"), ("bwrap", "runs commands")):
        if shutil.which(program) is None:
            miss(f"{program}, which {purpose}, is missing")
    target = tmp_path_factory.mktemp("servers")
    packages = [f"@modelcontextprotocol/server-{each}@{VERSION}" for each in NODE_SERVERS]
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run(("npm", "install", *quiet, "--prefix", target, *packages), check=True)
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target / "python")
    subprocess.run((*pip, *PYTHON_SERVERS), check=True)
    return target


def commands(installed: Path, work: Path) -> dict[str, McpCommand]:
    """What the operator permits."""
    libraries = str(Path(mcp.__file__).parents[1])  # of this interpreter: the SDK that the server needs
    node, readable = shutil.which("node") or "node", [str(installed)]
    return {
        "files": McpCommand(
            command=[node, _program(installed, "filesystem"), str(work)], readable=readable, writable=[str(work)]
        ),
        "memory": McpCommand(
            command=[node, _program(installed, "memory")],
            readable=readable,
            writable=[str(work)],
            environment={"MEMORY_FILE_PATH": f"{work}/memory.json"},
        ),
        "clock": McpCommand(
            command=[os.path.realpath(sys.executable), "-m", "mcp_server_time"],
            readable=[*readable, libraries, sys.base_prefix],
            environment={"PYTHONPATH": f"{installed}/python:{libraries}"},
        ),
    }


@asynccontextmanager
async def everything(installed: Path) -> AsyncIterator[str]:
    """The server of that name over HTTP; yields its URL."""
    [port] = free_ports(1)
    words = ("node", _program(installed, "everything"), "streamableHttp")
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = await asyncio.create_subprocess_exec(*words, env={**os.environ, "PORT": str(port)}, **quiet)
    try:
        url = f"http://127.0.0.1:{port}/mcp"
        await until(lambda: _answers(url))
        yield url
    finally:
        process.kill()
        await process.wait()


async def test_a_task_calls_the_tools_of_four_servers_from_its_code(
    committed: Sessions, database_url: str, bare_sandbox: ForkedSandbox, installed: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    known = commands(installed, work)
    async with (
        everything(installed) as url,
        open_client(allow_private_hosts=True) as client,
        open_api_app(committed, database_url, http_client=client, mcp_commands=known) as api,
        McpServers(client, known) as servers,
    ):
        await _register(api, everything=url, **{name: f"stdio:{name}" for name in known})
        turns = [*TURNS[:1], f"directory = {str(work)!r}{TURNS[1]}", *TURNS[2:]]
        tokenizer = byte_tokenizer(tmp_path / "model")
        project = LedgerProject(committed, bare_sandbox, tokenizer, Ledger(), client, api.demo.id)
        engine = ScriptedEngine(tokenizer, *map(block, turns))
        executor = dataclasses.replace(project.executor(engine), mcp=servers)
        async with Runner(committed, executor.execute, OPTIONS):
            row = await project.ended(await project.submit("use them all"))
        events = await project.events(row.id)
    assert row.answer is not None, [data["text"] for kind, data in events if kind == "observation"]
    found = row.answer
    assert found["echo"] == "Echo: hello"
    assert "5" in found["sum"]
    assert found["weather"].keys() == {"temperature", "conditions", "humidity"}
    assert found["resources"] is True
    assert found["refused"].startswith("ValidationError: ")
    assert "'two' is not of type 'number'" in found["refused"]
    assert "a note" in str(found["file"])
    assert "note.txt" in str(found["listed"])
    assert found["outside"].startswith("ApiError: ")
    assert "outside allowed directories" in found["outside"]
    assert found["graph"] == ["iris"]
    assert "21:00" in str(found["time"])
    assert (work / "memory.json").read_text().count("iris") == 1
    assert {data["api"].partition(".")[0] for kind, data in events if kind == "call"} == {*known, "everything"}


async def _register(api: ApiApp, **servers: str) -> None:
    """No call waits for a person: some tools of these servers say that they destroy."""
    rules = {"settings": {"approvals": {"default": "never"}}}
    assert (await api.client.patch("/v1/projects/demo", json=rules)).status_code == 200
    for name, address in servers.items():
        answer = await api.client.post("/v1/apis", json={"name": name, "mcp": address})
        assert answer.status_code == 201, answer.text
        assert answer.json()["left_out"] == []


def _program(installed: Path, name: str) -> str:
    return str(installed / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js")


async def _answers(url: str) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            await client.get(url)
        except httpx.TransportError:
            return False
    return True
