"""MCP servers over REST: registered, shown, refused, and asked again when their tools have changed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from mcp_types import ToolAnnotations

from app.apis import store as apis
from app.apis.documents.reader import DocumentReader
from app.apis.mcp import listing
from app.apis.mcp.connection import McpTarget
from app.db.database import Sessions
from app.releases.refresh import McpRefresh, mark_changed
from app.skills import store as skills
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.ledger_project import until
from tests.support.notebook_server import Notebook
from tests.support.rows import new_skill


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def names(api: ApiApp) -> list[str]:
    return [each["name"] for each in (await api.client.get("/v1/apis/notes")).json()["operations"]]


async def put(api: ApiApp, **fields: Any) -> httpx.Response:
    return await api.client.post("/v1/apis", json={"name": "notes", **fields})


async def test_the_tools_of_a_server_become_operations(api: ApiApp) -> None:
    notebook = Notebook()
    async with notebook.listening() as url:
        added = await put(api, mcp=f"{url}/", bearer_token="t0p-s3cret-t0ken")
        assert added.status_code == 201, added.text
    shown = added.json()
    assert (shown["source"], shown["base_url"], shown["has_token"]) == (url, url, True)
    assert shown["description"] == "The notes of a person."
    assert shown["operations"][0] == {
        "name": "write",
        "method": "tools/call",
        "path": "write",
        "signature": "write(text, times=1) -> map to integer: Write a note.",
        "summary": "Write a note.",
    }
    assert set(notebook.tokens) == {"Bearer t0p-s3cret-t0ken"}
    assert (await api.client.get("/v1/apis/notes")).json()["operations"] == shown["operations"]
    changed = await api.client.patch("/v1/apis/notes", json={"bind": {"write": {"text": "secret:note"}}})
    assert changed.json()["operations"][0]["signature"].startswith("write(times=1)")


async def test_a_tool_that_reads_is_called_to_test_a_server(api: ApiApp) -> None:
    notebook = Notebook()
    notebook.notes.append("buy tea")
    async with notebook.listening() as url:
        await put(api, mcp=url, bearer_token="t0p-s3cret-t0ken")
        notebook.tokens.clear()
        read = (await api.client.post("/v1/apis/notes/test", json={"operation": "read_notes"})).json()
        assert (read["ok"], read["answer"]) == (True, '{"result":"buy tea"}')
        assert set(notebook.tokens) == {"Bearer t0p-s3cret-t0ken"}
        writes = await api.client.post(
            "/v1/apis/notes/test", json={"operation": "write", "arguments": {"text": "x"}}
        )
        assert "write changes things" in str(problem(writes))
        chosen = (await api.client.post("/v1/apis/notes/test", json={})).json()
        assert chosen["ok"], chosen
    gone = (await api.client.post("/v1/apis/notes/test", json={})).json()
    assert not gone["ok"]
    assert "cannot be reached" in gone["error"]
    assert notebook.notes == ["buy tea"]


async def test_the_stored_token_is_used_when_the_tools_are_fetched_again(api: ApiApp) -> None:
    notebook = Notebook()
    async with notebook.listening() as url:
        await put(api, mcp=url, bearer_token="t0p-s3cret-t0ken")
        notebook.tokens.clear()
        assert (await put(api, mcp=url)).status_code == 201
    assert set(notebook.tokens) == {"Bearer t0p-s3cret-t0ken"}


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"mcp": "http://localhost:1/mcp"}, 400, "does not answer as an MCP server: the server cannot be reached"),
        ({"mcp": "ftp://localhost/mcp"}, 400, "mcp"),
        ({"mcp": "http://localhost/{world}/mcp"}, 400, "mcp"),
        ({"mcp": "stdio:memory"}, 400, "stdio:memory is not in SAGE_MCP_COMMANDS, which names none"),
        ({"mcp": "stdio:memory", "bearer_token": "x"}, 400, "bearer_token: a command takes none"),
        ({"mcp": "http://a.test/mcp", "url": "http://a.test"}, 400, "send `mcp` without `url`"),
        ({"mcp": "http://a.test/mcp", "server": "http://a.test"}, 400, "send `mcp` without `url`"),
        ({}, 400, "send either `url`, `document` or `mcp`"),
    ],
)
async def test_what_cannot_be_a_server_is_refused(
    api: ApiApp, fields: dict[str, str], status: int, reason: str
) -> None:
    answer = await put(api, **fields)
    assert answer.status_code == status
    assert reason in str(problem(answer)), answer.text


async def test_a_token_in_the_refusal_of_a_server_is_masked(committed: Sessions, database_url: str) -> None:
    refusing = httpx.MockTransport(lambda request: httpx.Response(401, text=request.headers["authorization"]))
    async with (
        httpx.AsyncClient(transport=refusing) as client,
        open_api_app(committed, database_url, http_client=client) as api,
    ):
        answer = await put(api, mcp="http://notes.test/mcp", bearer_token="t0p-s3cret-t0ken")
    detail = str(problem(answer)["detail"])
    assert "Response status code is 401" in detail
    assert "t0p-s3cret" not in detail


async def test_changed_tools_are_fetched_again_and_recorded_by_operation(api: ApiApp) -> None:
    notebook = Notebook()
    async with notebook.listening() as url, refreshing(api):
        await put(api, mcp=url)
        await add_skill(api, "tears", "tear")
        notebook.server.add_tool(lambda: "thin", name="underline", description="underline it")
        notebook.server.remove_tool("tear")
        await told(api, url)
        [change] = (await api.client.get("/v1/apis/notes/changes")).json()
    assert "underline" in await names(api)
    assert (change["applied"], change["added"], change["removed"]) == (True, ["underline"], ["tear"])
    [skill] = (await api.client.get("/v1/skills")).json()["skills"]
    assert change["skills"] == [skill["id"]]
    assert (skill["state"], skill["reason"]) == ("quarantined", "no longer what they were: notes.tear")


@pytest.mark.parametrize("hint", ["read_only_hint", "idempotent_hint", "destructive_hint"])
async def test_hints_that_ask_for_less_supervision_wait_for_a_person(api: ApiApp, hint: str) -> None:
    notebook, careful = Notebook(), ToolAnnotations(destructive_hint=True)
    notebook.server.add_tool(lambda: "wiped", name="wipe", annotations=careful)
    async with notebook.listening() as url, refreshing(api):
        before = (await put(api, mcp=url)).json()["digest"]
        eased = careful.model_copy(update={hint: hint != "destructive_hint"})
        notebook.server.remove_tool("wipe")
        notebook.server.add_tool(lambda: "wiped", name="wipe", annotations=eased)
        for _ in range(2):
            await told(api, url)
        [change] = (await api.client.get("/v1/apis/notes/changes")).json()
        assert (change["applied"], change["eased"], change["changed"]) == (False, ["wipe"], ["wipe"])
        assert (await api.client.get("/v1/apis/notes")).json()["digest"] == before
        assert (await put(api, mcp=url)).json()["digest"] == change["digest"]


async def test_a_server_that_is_down_is_asked_again_later_and_keeps_its_tools(api: ApiApp) -> None:
    async with httpx.AsyncClient(timeout=300) as client, DocumentReader() as reader:
        async with Notebook().listening() as url:
            await put(api, mcp=url)
        before = await names(api)
        async with McpRefresh(api.sessions, client, {}, reader, pause=0.05):
            await mark_changed(api.sessions)(McpTarget(url, api.demo.id))

            async def failure() -> str:
                return (await api.client.get("/v1/apis/notes")).json()["check_failure"] or ""

            async def was_tried() -> bool:
                return "does not answer as an MCP server" in await failure()

            await until(was_tried)
        assert await names(api) == before
        assert not await _is_settled(api)


async def test_tries_end(api: ApiApp) -> None:
    async with Notebook().listening() as url:
        await put(api, mcp=url)
    async with api.sessions.begin() as session:
        row = await apis.get(session, api.demo.id, "notes")
        row.refresh_tries = listing.MAX_TRIES - 1
        row.refresh_at = row.created_at
    async with api.sessions.begin() as session:
        claimed = await listing.claim_due(session)
        assert claimed is not None
        assert (claimed.refresh_tries, claimed.refresh_at) == (listing.MAX_TRIES, None)
        assert await listing.claim_due(session) is None


@asynccontextmanager
async def refreshing(api: ApiApp) -> AsyncIterator[None]:
    async with (
        httpx.AsyncClient(timeout=300) as client,
        DocumentReader() as reader,
        McpRefresh(api.sessions, client, {}, reader, pause=0.05),
    ):
        yield


async def told(api: ApiApp, url: str) -> None:
    """A runner was told by the server that its tools have changed, and they were fetched again."""
    await mark_changed(api.sessions)(McpTarget(url, api.demo.id))
    await until(lambda: _is_settled(api))


async def add_skill(api: ApiApp, name: str, tool: str) -> None:
    allowed = {"method": "tools/call", "safe": False, "arguments": {"page": ["constant"]}}
    manifest = {"operations": {f"notes.{tool}": allowed}}
    async with api.sessions.begin() as session:
        new = msgspec.structs.replace(new_skill(name), apis=[f"notes.{tool}"], manifest=manifest)
        await skills.add(session, api.demo.id, new)


async def _is_settled(api: ApiApp) -> bool:
    async with api.sessions() as session:
        return (await apis.get(session, api.demo.id, "notes")).refresh_at is None
