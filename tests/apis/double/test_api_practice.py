"""What can be practised on an API, over REST: by its document, and held against the real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from app.apis.calls.network import open_client
from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.apis.double.coverage import Coverage
from app.base.values import Json
from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.console_pages import post_form, read_page
from tests.support.desk_api import TOKEN, Desk, desk_document, serving_desk
from tests.support.double_documents import answer, document, path
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.ledger_project import until
from tests.support.sage_command import SageCommand

Served = tuple[Desk, str]
_MERGE = "what POST merge does cannot be told from the document"


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with (
        open_client(allow_private_hosts=True) as client,
        open_api_app(committed, database_url, http_client=client) as opened,
    ):
        yield opened


@pytest.fixture
def desk() -> Iterator[Served]:
    desk = Desk()
    with serving_desk(desk) as url:
        yield desk, url


async def add(api: ApiApp, url: str, **more: Json) -> dict[str, Any]:
    sent = {"name": "desk", "document": desk_document(url), "bearer_token": TOKEN, "trial": False, **more}
    added = await api.client.post("/v1/apis", json=sent)
    assert added.status_code == 201, added.text
    found: dict[str, Any] = added.json()
    return found


async def test_what_can_be_practised_is_told_with_a_reason_for_the_rest(api: ApiApp, desk: Served) -> None:
    added = await add(api, desk[1])
    assert added["practice"] == "document"
    shown = (await api.client.get("/v1/apis/desk/practice")).json()
    assert (shown["state"], shown["reason"]) == ("ready", None)
    assert (shown["operations"], shown["practised"], shown["collections"]) == (6, 4, ["cards"])
    assert shown["left_out"] == [
        {"operation": "merge_card", "method": "POST", "path": "/cards/{id}/merge", "reason": _MERGE},
        {"operation": "list_notes", "method": "GET", "path": "/notes", "reason": "its answer has no schema"},
    ]
    assert (shown["compared_at"], shown["differences"]) == (None, [])
    assert desk[0].calls == []  # the document says it all
    assert (await api.client.get("/v1/apis/other/practice")).status_code == 404


async def test_an_api_is_compared_with_its_document_until_that_changes(api: ApiApp, desk: Served) -> None:
    await add(api, desk[1])
    compared = await api.client.post("/v1/apis/desk/practice")
    assert compared.status_code == 200, compared.text
    found = compared.json()
    assert found["differences"] == [
        "GET /cards: the real server leaves out paused, owner of records of the list",
        "GET /cards/{id}: the real server leaves out paused",
    ]
    assert found["calls"] == len(desk[0].calls) == 5
    assert {each.partition(" ")[0] for each in desk[0].calls} == {"GET"}
    assert (await api.client.get("/v1/apis/desk/practice")).json() == found
    await add(api, desk[1] + "/")
    assert (await api.client.get("/v1/apis/desk/practice")).json()["compared_at"] is None


class WaitingDesk(Desk):
    """Its answers wait for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = Event()

    def answer(self, method: str, place: str, token: str) -> tuple[int, Json]:
        found = super().answer(method, place, token)
        assert self.go.wait()
        return found


async def test_an_api_is_compared_once_at_a_time(api: ApiApp) -> None:
    desk = WaitingDesk()
    with serving_desk(desk) as url:
        await add(api, url)
        first = asyncio.create_task(api.client.post("/v1/apis/desk/practice"))
        await until(lambda: len(desk.calls) > 0)
        second = asyncio.create_task(api.client.post("/v1/apis/desk/practice"))
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        desk.go.set()
        assert "desk is being compared" in str(problem(await second)["detail"])
        assert (await second).status_code == 409
        assert (await first).json()["calls"] == len(desk.calls) == 5
        assert (await api.client.post("/v1/apis/desk/practice")).status_code == 200


async def test_whether_the_real_api_is_read_is_set_kept_and_recorded(api: ApiApp, desk: Served) -> None:
    assert (await add(api, desk[1], practice="read"))["practice"] == "read"
    assert (await add(api, desk[1]))["practice"] == "read"  # replaced without it
    changed = await api.client.patch("/v1/apis/desk", json={"practice": "document"})
    assert changed.json()["practice"] == "document"
    assert (await api.client.patch("/v1/apis/desk", json={})).json()["practice"] == "document"
    assert (await api.client.get("/v1/apis")).json()[0]["practice"] == "document"
    assert (await api.client.patch("/v1/apis/desk", json={"practice": "write"})).status_code == 400
    entries = (await api.client.get("/v1/audit")).json()["entries"]
    details = [each["detail"] for each in entries]
    changes = [(each["before"].get("practice"), each["after"]["practice"]) for each in details if "after" in each]
    assert changes == [("document", "document"), ("read", "document"), ("read", "read"), (None, "read")]


async def test_a_server_that_refuses_is_told_and_nothing_is_promised(api: ApiApp, desk: Served) -> None:
    await add(api, desk[1])
    desk[0].status = 403
    found = (await api.client.post("/v1/apis/desk/practice")).json()
    assert found["differences"] == ["GET /cards: the real server answers with status 403, the double with 200"]
    assert "GET /cards was not read: the server answers with status 403" in found["skipped"]


_NODE: dict[str, Json] = {
    "type": "object",
    "required": ["id", "child"],
    "properties": {"id": {"type": "integer"}, "child": {"$ref": "#/components/schemas/Node"}},
}
_LOOSE: dict[str, Json] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "parent": {"$ref": "#/components/schemas/Loose"}},
}
_ODD: dict[str, Json] = {
    "type": "object",
    "example": {"id": "seven", "size": "big"},
    "properties": {"id": {"type": "integer", "example": "seven"}, "size": {"type": "number", "example": []}},
}


def _things(schema: Json, **schemas: Json) -> dict[str, Json]:
    listed = {"get": {"responses": {"200": answer({"type": "array", "items": schema})}}}
    one = {"get": {"parameters": [path("id", type="integer")], "responses": {"200": answer(schema)}}}
    return document({"/things": listed, "/things/{id}": one}, schemas)


def _ref(name: str) -> dict[str, Json]:
    return {"$ref": f"#/components/schemas/{name}"}


def _nested(depth: int) -> dict[str, Json]:
    schema: dict[str, Json] = {"type": "object", "properties": {"id": {"type": "integer"}}}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"inner": schema}}
    return schema


async def test_every_document_has_a_named_state() -> None:
    status = document({"/status": {"get": {"responses": {"200": answer({"type": "string"})}}}})
    listed: dict[str, Any] = {"200": answer({"type": "array", "items": _ref("Wide")})}
    large = {f"/things{at}": {"get": {"description": "x" * 100_000, "responses": listed}} for at in range(50)}
    wide: dict[str, Json] = {
        "type": "object",
        "properties": {f"field{at}": {"type": "string"} for at in range(40)},
    }
    mcp = {
        "mcp": "2025-06-18",
        "url": "http://a.test/mcp",
        "tools": [{"name": "add", "inputSchema": {"type": "object"}}],
    }
    rows: list[tuple[str, Json, str, int, str]] = [
        ("plain", _things(_LOOSE, Loose=_LOOSE), "ready", 2, ""),
        ("endless", _things(_ref("Node"), Node=_NODE), "ready", 2, ""),
        ("no records", status, "no_records", 1, "the document shows no records"),
        ("no operations", document({}), "unreadable", 0, "the document has no operations"),
        ("odd examples", _things(_ODD), "ready", 2, ""),
        ("deep", _things(_nested(60)), "ready", 2, ""),
        ("large", document(large, {"Wide": wide}), "ready", 50, ""),
        ("mcp", mcp, "not_openapi", 0, "it is no OpenAPI document"),
    ]
    async with DocumentReader() as reader:
        with every_row() as row:
            for name, given, state, practised, reason in rows:
                with row(name):
                    found = await coverage(reader, given)
                    assert (found.state, found.practised) == (state, practised)
                    assert reason in (found.reason or "")
                    assert (found.reason is None) == (state == "ready")


async def test_a_document_that_takes_too_much_is_unreadable_and_not_read_again() -> None:
    many: dict[str, Any] = {
        f"/a{at}/{{id}}/b{at}": {"get": {"parameters": [path("id")], "responses": {"200": answer(_LOOSE)}}}
        for at in range(9_000)
    }
    async with DocumentReader(cpu_seconds=1) as reader:
        found = await coverage(reader, document(many))
        assert (found.state, found.reason) == ("unreadable", "this document takes longer than 1 s to read")
        assert await coverage(reader, document(many)) is found


async def test_a_document_is_looked_at_once_and_again_where_the_reader_was_late() -> None:
    given = _things(_LOOSE, Loose=_LOOSE)
    async with DocumentReader() as reader:
        first, second = await asyncio.gather(coverage(reader, given), coverage(reader, given))
        assert first is second
    async with DocumentReader(timeout=0.01) as reader:
        first, second = await asyncio.gather(coverage(reader, given), coverage(reader, given))
        assert first == second
        assert (first.state, first is second) == ("unreadable", False)


async def test_a_slow_document_does_not_hold_up_another() -> None:
    many: dict[str, Any] = {
        f"/a{at}/{{id}}/b{at}": {"get": {"parameters": [path("id")], "responses": {"200": answer(_LOOSE)}}}
        for at in range(9_000)
    }
    async with DocumentReader(cpu_seconds=20) as reader:
        slow = asyncio.create_task(coverage(reader, document(many)))
        await asyncio.sleep(0)  # it has begun
        quick = asyncio.create_task(coverage(reader, _things(_LOOSE, Loose=_LOOSE)))
        await asyncio.wait([slow, quick], return_when=asyncio.FIRST_COMPLETED)
        assert (quick.done(), slow.done()) == (True, False)
        slow.cancel()
        await asyncio.wait([slow])


async def coverage(reader: DocumentReader, given: Json) -> Coverage:
    content = json.dumps(given).encode()
    return await reader.coverage(ReadRequest(name="desk"), content, sha256(content).hexdigest())


async def test_the_command_shows_compares_and_sets_it(
    committed: Sessions, database_url: str, desk: Served, tmp_path: Path
) -> None:
    file = tmp_path / "desk.json"
    file.write_text(json.dumps(desk_document(desk[1])))
    async with (
        open_client(allow_private_hosts=True) as client,
        open_api_app(committed, database_url, http_client=client) as opened,
        served(opened) as server,
    ):
        shell = SageCommand(opened, str(server.base_url))
        await shell.run("apis add", "desk", str(file), "--no-trial", "--practice", "read")
        assert desk[0].calls == []
        shown = await shell.run("apis practice", "desk")
        assert "4 of 6 operations can be practised" in shown.out
        assert "the document and the real API" in shown.out
        assert _MERGE in shown.out
        assert "compared" not in shown.out
        compared = await shell.run("apis practice", "desk", "read")
        assert "the real server leaves out paused, owner of records of the list" in compared.out
        assert len(desk[0].calls) == 5
        assert "the document alone" in (await shell.run("apis practice", "desk", "document")).out
        assert json.loads((await shell.run("apis practice", "desk", "--json")).out)["practice"] == "document"


async def test_the_apis_page_shows_it_and_an_administrator_changes_it(api: ApiApp, desk: Served) -> None:
    await add(api, desk[1])
    page = await read_page(api, "/console/apis/desk", "admin")
    assert 'id="practice" data-refresh="0" data-from="/console/apis/desk/practice' in page
    shown = await read_page(api, "/console/apis/desk/practice", "tasks")
    assert "<strong>4 of 6</strong> operations can be practised" in shown
    assert _MERGE in shown
    assert "<button" not in shown
    assert "Use what it answers, too" in await read_page(api, "/console/apis/desk/practice", "admin")
    await post_form(api, "/console/apis/desk/practice", {"practice": "read"}, "admin")
    assert desk[0].calls == []
    await post_form(api, "/console/apis/desk/practice/compare", {}, "admin")
    shown = await read_page(api, "/console/apis/desk/practice", "admin")
    assert "Use the document alone" in shown
    assert "by 5 calls: it differs from the document." in shown
    assert "the real server leaves out paused, owner of records of the list" in shown
