"""Calls of MCP servers: sessions, results, failures and limits."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest
from mcp.server.mcpserver import Audio, Image

from app.apis.calls.gateway import Gateway
from app.apis.calls.http_call import WireRequest
from app.apis.calls.network import open_client
from app.apis.catalog import Catalog
from app.apis.credentials.credential import FixedCredentials, bearer
from app.apis.documents.protocols import parse_document
from app.apis.mcp.calls import McpCaller, mcp_callers
from app.apis.mcp.connection import McpServers, McpTarget
from app.apis.mcp.listing import fetch_listing
from app.base.errors import ApiDocumentError, HostError
from app.base.values import Call
from tests.apis.test_apis_api import web
from tests.support.ledger_project import until
from tests.support.listening_app import listening_app
from tests.support.notebook_server import Notebook

PROJECT = UUID(int=1)


@pytest.fixture(params=["now", "older"])
async def notebook(request: pytest.FixtureRequest) -> Notebook:
    return Notebook(older=request.param == "older")


@asynccontextmanager
async def servers(changed: Any = None, *, private: bool = True) -> AsyncIterator[McpServers]:
    async with open_client(allow_private_hosts=private) as client, McpServers(client, {}, changed) as opened:
        yield opened


@asynccontextmanager
async def gateway(url: str, **rules: Any) -> AsyncIterator[Gateway]:
    async with servers() as opened, open_client(allow_private_hosts=True) as client:
        app = parse_document("notes", msgspec.json.decode(await fetch_listing(opened, url, None)))
        callers = mcp_callers(opened, PROJECT, "iris", rules.pop("timeout", 30))
        yield Gateway(Catalog({"notes": app}), client, callers=callers, **rules)


async def failure(gateway: Gateway, api: str, **arguments: Any) -> str:
    with pytest.raises(HostError) as caught:
        await gateway(api, [], arguments)
    return f"{caught.value.kind}: {caught.value.message}"


async def test_tools_are_called_and_return_structured_content_or_text(notebook: Notebook) -> None:
    async with notebook.listening() as url, gateway(url) as opened:
        assert await opened("notes.write", ["hello"], {"times": 2}) == {"count": 2}
        assert await opened("notes.read_notes", [], {}) == {"result": "hello\nhello"}
        assert await opened("notes.erase", [], {}) == "erased"
        assert notebook.notes == []
        assert notebook.sessions == (2 if notebook.older else 0)  # one to list the tools, one for all calls


async def test_resources_are_listed_and_read(notebook: Notebook) -> None:
    async with notebook.listening() as url, gateway(url) as opened:
        [listed] = await opened("notes.list_resources", [], {})
        assert listed["uri"] == "notes://all"
        await opened("notes.write", ["a note"], {})
        assert await opened("notes.read_resource", ["notes://all"], {}) == "a note"


async def test_images_sounds_and_files_are_bytes_and_are_recorded_by_hash(notebook: Notebook) -> None:
    content = bytes(range(256))

    @notebook.server.tool(structured_output=False)
    def draw(words: list[str]) -> list[Image | str]:
        return [*words, Image(data=content, format="png")]

    @notebook.server.tool(structured_output=False)
    def record() -> Audio:
        return Audio(data=content, format="wav")

    @notebook.server.resource("notes://cover", mime_type="image/png")
    def cover() -> bytes:
        return content

    recorded = {"$bytes": 256, "sha256": hashlib.sha256(content).hexdigest()}
    async with notebook.listening() as url, gateway(url) as opened:
        assert await opened("notes.draw", [[]], {}) == content
        assert await opened("notes.record", [], {}) == content
        assert await opened("notes.read_resource", ["notes://cover"], {}) == content
        assert await opened("notes.draw", [["a cat"]], {}) == "a cat\n[image/png, 256 bytes]"
        assert [call.result for call in opened.take_calls()[:3]] == [recorded] * 3


async def test_arguments_are_checked_before_anything_is_sent(notebook: Notebook) -> None:
    async with notebook.listening() as url, gateway(url) as opened:
        sent = len(notebook.requests)
        assert (await failure(opened, "notes.write", text=1)).startswith("ValidationError: ")
        assert "has no argument 'tekst', did you mean text or" in await failure(opened, "notes.write", tekst="x")
        assert len(notebook.requests) == sent


async def test_a_tool_that_fails_raises_what_it_says(notebook: Notebook) -> None:
    async with notebook.listening() as url, gateway(url) as opened:
        said = await failure(opened, "notes.tear", page=3)
        assert said.startswith("ApiError: ")
        assert said.endswith("there is no page 3")


async def test_a_tool_that_is_gone_raises_an_error_and_the_session_goes_on(notebook: Notebook) -> None:
    async with notebook.listening() as url, gateway(url) as opened:
        notebook.server.remove_tool("erase")
        assert (await failure(opened, "notes.erase")).startswith("ApiError: ")
        assert await opened("notes.write", ["still"], {}) == {"count": 1}


async def test_a_server_that_forgot_the_session_gets_a_new_one_and_the_call_once() -> None:
    notebook = Notebook(older=True)
    async with notebook.listening() as url, gateway(url) as opened:
        await opened("notes.write", ["one"], {})
        begun = notebook.sessions
        notebook.forget = True
        assert await opened("notes.write", ["two"], {}) == {"count": 2}
        assert notebook.notes == ["one", "two"]
        assert notebook.sessions == begun + 1


async def test_a_call_without_an_answer_is_not_repeated(notebook: Notebook) -> None:
    async with notebook.listening() as url, gateway(url, timeout=5) as opened:
        notebook.answers.clear()
        assert await failure(opened, "notes.write", text="once") == "ApiError: no answer within 5 seconds"
        notebook.answers.set()
        assert await opened("notes.write", ["again"], {}) == {"count": 2}
        assert notebook.notes == ["once", "again"]


async def test_a_server_that_vanishes_is_named_and_found_again_when_it_is_back(notebook: Notebook) -> None:
    async with servers() as opened:
        async with notebook.listening() as url:
            caller = McpCaller(opened, PROJECT, "iris", timeout=30)
            write = msgspec.json.encode({"name": "write", "arguments": {"text": "x"}})
            assert (await caller.send(WireRequest("tools/call", url, {}, write))).value == {"count": 1}
        with pytest.raises(HostError, match="the server cannot be reached"):
            await caller.send(WireRequest("tools/call", url, {}, write))
    assert notebook.notes == ["x"]


async def test_the_token_goes_with_every_request_and_stays_out_of_results() -> None:
    notebook = Notebook()
    notebook.server.add_tool(lambda: notebook.tokens[-1], name="whoami", structured_output=False)
    async with (
        notebook.listening() as url,
        gateway(url, credentials=FixedCredentials(bearer("t0p-s3cret-t0ken"))) as opened,
    ):
        notebook.tokens.clear()
        assert await opened("notes.whoami", [], {}) == "***"
        assert set(notebook.tokens) == {"Bearer t0p-s3cret-t0ken"}


async def test_each_principal_has_a_session_of_its_own() -> None:
    notebook = Notebook(older=True)
    async with notebook.listening() as url, servers() as opened:
        read = msgspec.json.encode({"name": "readNotes", "arguments": {}})
        for principal in ("iris", "omar", "iris"):
            await McpCaller(opened, PROJECT, principal, timeout=30).send(WireRequest("tools/call", url, {}, read))
    assert notebook.sessions == 2


async def test_concurrent_calls_share_a_session(notebook: Notebook) -> None:
    async with notebook.listening() as url, servers() as opened:
        caller = McpCaller(opened, PROJECT, "", timeout=30)
        write = msgspec.json.encode({"name": "write", "arguments": {"text": "x"}})
        notebook.answers.clear()
        calls = [asyncio.create_task(caller.send(WireRequest("tools/call", url, {}, write))) for _ in range(5)]
        await until(lambda: len(notebook.notes) == 5)
        notebook.answers.set()
        assert [each.value for each in await asyncio.gather(*calls)] == [{"count": 5}] * 5
        assert notebook.sessions == (1 if notebook.older else 0)


async def test_a_server_tells_that_its_tools_have_changed(notebook: Notebook) -> None:
    told: list[McpTarget] = []

    async def changed(target: McpTarget) -> None:
        told.append(target)

    async with notebook.listening() as url, servers(changed) as opened:
        caller = McpCaller(opened, PROJECT, "iris", timeout=30)
        ask = msgspec.json.encode({"name": "readNotes", "arguments": {}})
        await caller.send(WireRequest("tools/call", url, {}, ask))
        extend = msgspec.json.encode({"name": "extend", "arguments": {}})

        async def is_told() -> bool:
            """Of one of many changes, since nothing says when it listens."""
            await caller.send(WireRequest("tools/call", url, {}, extend))
            return bool(told)

        await until(is_told)
    assert told[0].url == url
    assert told[0].project == PROJECT


class _Journal:
    """Refuses that anything is sent."""

    async def begin(self, call: Call, repeatable: bool) -> Call | None:  # noqa: ARG002
        return None

    async def sending(self) -> None:
        raise LookupError("the claim is lost")

    async def end(self, call: Call) -> None: ...

    async def abort(self) -> None: ...


async def test_nothing_is_sent_once_the_claim_is_lost(notebook: Notebook) -> None:
    async with notebook.listening() as url, gateway(url, journal=_Journal()) as opened:
        with pytest.raises(LookupError):
            await opened("notes.write", ["lost"], {})
        assert notebook.notes == []
        assert await opened("notes.read_notes", [], {}) == {"result": ""}  # reading changes nothing


async def test_private_addresses_stay_closed() -> None:
    async with Notebook().listening() as url, servers(private=False) as opened:
        with pytest.raises(ApiDocumentError, match=r"127\.0\.0\.1, which is closed to calls"):
            await fetch_listing(opened, url, None)


async def test_an_answer_that_is_too_large_is_refused(notebook: Notebook) -> None:
    notebook.server.add_tool(lambda: "x" * (4 << 20), name="flood", structured_output=False)
    async with notebook.listening() as url, gateway(url) as opened:
        assert "too large" in (said := await failure(opened, "notes.flood")) or "larger than" in said
        assert await opened("notes.write", ["still"], {}) == {"count": 1}


@pytest.mark.parametrize("page", [b"<html>Welcome</html>", b'{"openapi": "3.1.0"}', b""])
async def test_what_is_no_mcp_server_is_refused_by_name(page: bytes) -> None:
    async with web(page) as url, servers() as opened:
        with pytest.raises(ApiDocumentError, match="does not answer as an MCP server: "):
            await fetch_listing(opened, url, None)


async def test_a_gateway_without_mcp_servers_calls_none() -> None:
    async with (
        Notebook().listening() as url,
        gateway(url) as opened,
        open_client(allow_private_hosts=True) as client,
    ):
        alone = Gateway(opened.catalog, client)
        assert await failure(alone, "notes.erase") == "ApiError: notes is an MCP server, and none is called here"


async def test_a_command_must_be_permitted() -> None:
    async with servers() as opened:
        with pytest.raises(ApiDocumentError, match="stdio:memory is not in SAGE_MCP_COMMANDS, which names none"):
            await fetch_listing(opened, "stdio:memory", None)


class LateServer:
    """A server since 2026-07-28 that reads the first question late: the client has asked as before meanwhile."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        question = msgspec.json.decode((await receive())["body"])
        self.asked.append(question["method"])
        late = self.asked == ["server/discover"]
        answer = {"jsonrpc": "2.0", "id": question["id"], **self._answer(question["method"])}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400 if late else 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}" if late else msgspec.json.encode(answer)})

    def _answer(self, method: str) -> dict[str, Any]:
        if method == "initialize":
            data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
            return {"error": {"code": -32022, "message": "the handshake is not accepted", "data": data}}
        complete = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover":
            return {"result": {**complete, "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}}
        tool = {"name": "look", "inputSchema": {"type": "object"}}
        return {"result": {**complete, "tools": [tool]}}


async def test_a_server_that_was_slow_to_start_is_asked_again() -> None:
    server = LateServer()
    async with listening_app(server, lifespan="off") as url, servers() as opened:
        document = msgspec.json.decode(await fetch_listing(opened, url, None))
    assert [each["name"] for each in document["tools"]] == ["look"]
    assert server.asked == ["server/discover", "initialize", "server/discover", "tools/list"]
