"""The routes for APIs and for feedback."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
import yaml
from sqlalchemy import event

from app.apis import store as apis
from app.db import tables
from app.db.database import Sessions
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.event_loop import longest_stall
from tests.support.every_row import every_row
from tests.support.processes import free_ports
from tests.support.raw_server import http_answer, raw_server

DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Mail", "version": "1"},
    "servers": [{"url": "http://mail.test/{world}", "variables": {"world": {"default": "demo"}}}],
    "paths": {
        "/mails": {
            "get": {
                "operationId": "listMails",
                "summary": "list mails",
                "parameters": [
                    {"name": "folder", "in": "query", "required": True, "schema": {"type": "string"}},
                    {"name": "page", "in": "query", "schema": {"type": "integer", "default": 1}},
                ],
                "responses": {"200": {"description": "ok"}},
            }
        }
    },
}


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@asynccontextmanager
async def web(body: bytes) -> AsyncIterator[str]:
    """A web server that answers every request with one body."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/openapi.json"


async def test_a_document_at_a_url_becomes_operations(api: ApiApp) -> None:
    async with web(json.dumps(DOCUMENT).encode()) as url:
        made = await api.client.post("/v1/apis", json={"name": "mail", "url": url, "bearer_token": "s3cret"})
    assert made.status_code == 201, made.text
    added = made.json()
    assert [(each["name"], each["method"]) for each in added["operations"]] == [("list_mails", "GET")]
    assert added["operations"][0]["signature"] == "list_mails(folder, page=1): list mails"
    assert added["variables"] == {"world": "demo"}
    assert (added["source"], added["has_token"]) == (url, True)

    for path in ("/v1/apis", "/v1/apis/mail"):
        assert "s3cret" not in (await api.client.get(path)).text
    async with api.sessions() as session:
        assert apis.token_of(session, await apis.get(session, api.demo.id, "mail")) == "s3cret"

    assert (await api.client.delete("/v1/apis/mail")).status_code == 204
    assert (await api.client.get("/v1/apis/mail")).status_code == 404
    assert (await api.client.delete("/v1/apis/mail")).status_code == 404


async def test_changing_or_removing_a_document_creates_a_release_with_an_audit_entry(api: ApiApp) -> None:
    body = {"name": "mail", "document": DOCUMENT}
    assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    await api.submit()
    async with api.sessions.begin() as session:
        assert await queue.claim(session, "runner", 30) is not None
    assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    assert await _releases(api) == [(1, "active", None)], "the same document again"
    other = {**DOCUMENT, "paths": {"/inbox": DOCUMENT["paths"]["/mails"]}}  # type: ignore[index]
    assert (await api.client.post("/v1/apis", json=body | {"document": other})).status_code == 201
    changed = {"reason": "the API mail changed"}
    assert await _releases(api) == [(2, "active", changed), (1, "retired", None)]
    assert (await api.client.delete("/v1/apis/mail")).status_code == 204
    logged = (await api.client.get("/v1/audit")).json()["entries"]
    assert {entry["actor"] for entry in logged} == {"key test admin"}


async def _releases(api: ApiApp) -> list[tuple[int, str, object]]:
    listed = (await api.client.get("/v1/releases")).json()
    return [(each["number"], each["state"], each["evidence"]) for each in listed]


async def test_large_documents_are_read_and_stored_while_the_api_answers_others(api: ApiApp) -> None:
    schemas = {f"S{n}": {"type": "object", "properties": {"a": {"type": "number"}}} for n in range(10_000)}
    floats = [1.7976931348623157e308] * 20_000
    large = {**DOCUMENT, "components": {"schemas": schemas}, "x-data": floats}
    for document in (large, yaml.dump(large, Dumper=yaml.CSafeDumper)):
        async with longest_stall() as worst:
            made = await api.client.post("/v1/apis", json={"name": "mail", "document": document})
            assert made.status_code == 201, made.text
            assert (await api.client.get("/v1/apis/mail")).json()["operations"] == made.json()["operations"]
        assert worst[0] < 0.5
    async with api.sessions() as session:
        assert (await apis.get(session, api.demo.id, "mail")).document["components"]["schemas"] == schemas


async def test_a_body_of_hostile_json_is_refused_at_once(api: ApiApp) -> None:
    slow = b'{"instruction": "x", "variables": [' + b"1.7976931348623157e308," * 200_000 + b"1]}"
    many = b'{"instruction": "x", "variables": ' + b"[" * 150_000 + b"]" * 150_000 + b"}"
    for body in (slow, many, b"[" * 400_000, b'{"instruction": "\\ud800"}'):
        async with longest_stall() as worst:
            answer = await api.client.post("/v1/tasks", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert worst[0] < 1


@pytest.mark.parametrize("document", [DOCUMENT, json.dumps(DOCUMENT), "openapi: 3.1.0\npaths: {/x: {get: {}}}"])
async def test_a_document_is_accepted_as_an_object_and_as_text(api: ApiApp, document: object) -> None:
    body = {"name": "mail", "document": document, "server": "http://other.test"}
    made = await api.client.post("/v1/apis", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["base_url"] == "http://other.test"
    again = await api.client.post("/v1/apis", json=body)
    assert again.json()["id"] == made.json()["id"]  # replaced, not doubled
    assert len((await api.client.get("/v1/apis")).json()) == 1


async def test_a_server_that_does_not_answer_is_remarked_on_and_not_replaced(api: ApiApp) -> None:
    (port,) = free_ports(1)
    document = json.dumps(DOCUMENT | {"servers": [{"url": f"http://127.0.0.1:{port}/v1"}]}).encode()
    async with raw_server(http_answer(document, "Content-Type: application/json")) as url:
        made = await api.client.post("/v1/apis", json={"name": "mail", "url": f"{url}/openapi.json"})
    assert made.json()["base_url"] == f"http://127.0.0.1:{port}/v1"
    (remark,) = made.json()["remarks"]
    assert remark.startswith(f"the document's server http://127.0.0.1:{port}/v1 does not answer (")
    assert remark.endswith(
        f"came from {url}: if the API is there, send the document again with `server`: {url}/v1"
    )
    uploaded = await api.client.post("/v1/apis", json={"name": "mail", "document": DOCUMENT})
    assert uploaded.json()["remarks"] == []


@pytest.mark.parametrize("how", ["document", "server"])
async def test_a_server_that_no_client_can_reach_is_refused(api: ApiApp, how: str) -> None:
    url = "http://127.0.0.1:8195api/v1"
    named = {"server": url} if how == "server" else {"document": DOCUMENT | {"servers": [{"url": url}]}}
    answer = await api.client.post("/v1/apis", json={"name": "mail", "document": DOCUMENT, **named})
    assert answer.status_code == 400
    assert "is not an address" in str(problem(answer)["detail"])
    assert (await api.client.get("/v1/apis")).json() == []


async def test_the_first_other_server_that_answers_is_proposed(api: ApiApp) -> None:
    dead = [f"http://127.0.0.1:{port}" for port in free_ports(2)]
    async with raw_server(http_answer(b"{}", "Content-Type: application/json")) as alive:
        port = {"url": "http://127.0.0.1:{port}/v1/", "variables": {"port": {"default": alive.rpartition(":")[2]}}}
        servers = [{"url": dead[0]}, {"url": "http://{host}/x"}, 7, {"url": f"{dead[1]}/v1"}, port, {"url": "/v2"}]
        made = await api.client.post(
            "/v1/apis", json={"name": "mail", "document": DOCUMENT | {"servers": servers}}
        )
        live = await api.client.post("/v1/apis", json={"name": "mail", "document": DOCUMENT | {"servers": [port]}})
    assert made.json()["base_url"] == dead[0]
    (remark,) = made.json()["remarks"]
    assert remark.endswith(
        f", but another one that it names does: send the document again with `server`: {alive}/v1"
    )
    assert live.json()["remarks"] == []
    servers = [{"url": each} for each in dead]
    made = await api.client.post("/v1/apis", json={"name": "mail", "document": DOCUMENT | {"servers": servers}})
    (remark,) = made.json()["remarks"]
    assert remark.startswith(f"the document's server {dead[0]} does not answer (")
    assert f", nor does {dead[1]}: if the API is elsewhere, " in remark


UNUSABLE: list[tuple[object, str]] = [
    ({"name": "mail"}, "either"),
    ({"name": "mail", "url": "http://a.test", "document": {}}, "either"),
    ({"name": "mail", "url": "http://127.0.0.1:9/openapi.json"}, "cannot be reached"),
    ({"name": "mail", "url": "/etc/passwd"}, "http://"),
    ({"name": "mail", "url": "file:///etc/passwd"}, "http://"),
    ({"name": "mail", "url": "http://[broken"}, "http"),
    ({"name": "mail", "document": {"swagger": "1.2"}}, "2.0 (Swagger)"),
    ({"name": "mail", "document": {"openapi": "3.1.0", "paths": {}}}, "paths"),
    ({"name": "mail", "document": "a: [not yaml"}, "line"),
    ({"name": "mail", "document": 7}, "document"),
    ({"name": "Mail-Box", "document": {}}, "name"),
    ({"name": "api_docs", "document": DOCUMENT}, "built in"),
    ({"name": "class", "document": DOCUMENT, "nonsense": 1}, "nonsense"),
    ({"name": "mail", "document": DOCUMENT, "server": "mail.test"}, "http"),
]


async def test_an_unusable_document_is_refused_with_what_to_do(api: ApiApp) -> None:
    with every_row() as row:
        for body, hint in UNUSABLE:
            with row(body, hint):
                answer = await api.client.post("/v1/apis", json=body)
                assert answer.status_code == 400, answer.text
                assert hint in str(problem(answer)["detail"])
                assert (await api.client.get("/v1/apis")).json() == []


@pytest.mark.parametrize("document", [rb'"\ud800"', b'{"a": "\xff"}', b'"\xff"', b'"a', rb'{"a": "\x"}'])
async def test_a_document_that_is_no_text_is_refused(api: ApiApp, document: bytes) -> None:
    body = b'{"name": "mail", "document": ' + document + b"}"
    answer = await api.client.post("/v1/apis", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text


async def test_a_file_of_the_server_is_never_read(api: ApiApp, tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(DOCUMENT))
    for url in (str(file), file.as_uri()):
        assert (await api.client.post("/v1/apis", json={"name": "mail", "url": url})).status_code == 400


async def test_feedback_becomes_the_score_of_an_ended_task(api: ApiApp) -> None:
    task_id = await api.submit()
    body = {"task_id": str(task_id), "score": 0.25, "comment": "half of them"}
    assert (await api.client.post("/v1/feedback", json=body)).status_code == 409
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        await queue.finish(session, task_id, "runner", queue.TaskOutcome(state=tables.TaskState.DONE))

    assert (await api.client.post("/v1/feedback", json=body)).status_code == 201
    assert (await api.client.get(f"/v1/tasks/{task_id}")).json()["score"] == 0.25
    given = (await api.client.get("/v1/feedback", params={"task_id": str(task_id)})).json()
    assert [(each["score"], each["comment"]) for each in given] == [(0.25, "half of them")]


async def test_tasks_are_listed_whose_check_a_person_contradicts(api: ApiApp) -> None:
    outcomes = {1.0: 0.0, 0.6: 0.5, 0.0: None}  # of the check, and of a person
    ids = []
    for checked, given in outcomes.items():
        ids.append(await api.submit())
        async with api.sessions.begin() as session:
            await queue.claim(session, "runner", 30)
            ended = queue.TaskOutcome(state=tables.TaskState.DONE, score=checked)
            await queue.finish(session, ids[-1], "runner", ended)
        if given is not None:
            body = {"task_id": str(ids[-1]), "score": given}
            assert (await api.client.post("/v1/feedback", json=body)).json()["author"] == "key test admin"
    listed = (await api.client.get("/v1/tasks?overruled=true")).json()["tasks"]
    assert [(each["id"], each["score"]) for each in listed] == [(str(ids[0]), 0.0)]
    assert (await api.client.get(f"/v1/tasks/{ids[0]}")).json()["overruled_score"] == 1.0
    assert len((await api.client.get("/v1/tasks")).json()["tasks"]) == len(outcomes)


@pytest.mark.parametrize(
    "body",
    [
        {"score": 0.5},
        {"task_id": "7", "score": 0.5},
        {"task_id": str(uuid4()), "score": 1.5},
        {"task_id": str(uuid4()), "score": -0.1},
        {"task_id": str(uuid4()), "score": "good"},
        {"task_id": str(uuid4()), "score": 1, "stars": 5},
    ],
)
async def test_invalid_feedback_is_refused(api: ApiApp, body: object) -> None:
    answer = await api.client.post("/v1/feedback", json=body)
    assert answer.status_code == 400
    problem(answer)


async def test_a_list_of_apis_reads_no_document(api: ApiApp) -> None:
    statements: list[str] = []
    engine = api.sessions.kw["bind"].sync_engine
    async with api.sessions.begin() as session:
        broken = {"source": "upload", "document": {"openapi": "?"}, "digest": "none"}
        await apis.put(session, api.demo.id, "mail", **broken)  # type: ignore[arg-type]
    event.listen(engine, "before_cursor_execute", lambda *about: statements.append(about[2]))
    listed = await api.client.get("/v1/apis")
    assert [each["name"] for each in listed.json()] == ["mail"]
    [read] = [each for each in statements if "FROM apis" in each]
    assert "document" not in read
    assert (await api.client.get("/v1/apis/mail")).status_code == 400, "this one parses it"
