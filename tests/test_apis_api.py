"""Registering OpenAPI documents, and feedback, over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from app.db import apis, models, task_queue
from app.db.database import Sessions
from tests.edge import Edge, open_edge, problem

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
async def edge(committed: Sessions, database_url: str) -> AsyncIterator[Edge]:
    async with open_edge(committed, database_url) as opened:
        yield opened


@asynccontextmanager
async def web(body: bytes) -> AsyncIterator[str]:
    """A web server that answers everything with one body."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/openapi.json"


async def test_a_document_behind_a_url_becomes_operations(edge: Edge) -> None:
    async with web(json.dumps(DOCUMENT).encode()) as url:
        made = await edge.client.post("/v1/apis", json={"name": "mail", "url": url, "bearer_token": "s3cret"})
    assert made.status_code == 201, made.text
    api = made.json()
    assert [(each["name"], each["method"]) for each in api["operations"]] == [("list_mails", "GET")]
    assert api["operations"][0]["signature"] == "list_mails(folder, page=1): list mails"
    assert api["variables"] == {"world": "demo"}
    assert (api["source"], api["has_token"]) == (url, True)

    for path in ("/v1/apis", "/v1/apis/mail"):
        assert "s3cret" not in (await edge.client.get(path)).text
    async with edge.sessions() as session:
        assert (await apis.get(session, edge.demo.id, "mail")).secret == "s3cret"

    assert (await edge.client.delete("/v1/apis/mail")).status_code == 204
    assert (await edge.client.get("/v1/apis/mail")).status_code == 404
    assert (await edge.client.delete("/v1/apis/mail")).status_code == 404


async def test_another_document_or_none_is_a_release_of_its_own_that_says_who_asked_for_it(edge: Edge) -> None:
    body = {"name": "mail", "document": DOCUMENT}
    assert (await edge.client.post("/v1/apis", json=body)).status_code == 201
    await edge.submit()
    async with edge.sessions.begin() as session:
        assert await task_queue.claim(session, "runner", 30) is not None
    assert (await edge.client.post("/v1/apis", json=body)).status_code == 201
    assert await _releases(edge) == [(1, "active", None)], "the same document again"
    other = {**DOCUMENT, "paths": {"/inbox": DOCUMENT["paths"]["/mails"]}}  # type: ignore[index]
    assert (await edge.client.post("/v1/apis", json=body | {"document": other})).status_code == 201
    changed = {"reason": "the API mail changed"}
    assert await _releases(edge) == [(2, "active", changed), (1, "retired", None)]
    assert (await edge.client.delete("/v1/apis/mail")).status_code == 204
    logged = (await edge.client.get("/v1/audit")).json()["entries"]
    assert {entry["actor"] for entry in logged} == {"key test admin"}


async def _releases(edge: Edge) -> list[tuple[int, str, object]]:
    listed = (await edge.client.get("/v1/releases")).json()
    return [(each["number"], each["state"], each["evidence"]) for each in listed]


@pytest.mark.parametrize("document", [DOCUMENT, json.dumps(DOCUMENT), "openapi: 3.1.0\npaths: {/x: {get: {}}}"])
async def test_a_document_is_taken_as_an_object_and_as_text(edge: Edge, document: object) -> None:
    body = {"name": "mail", "document": document, "server": "http://other.test"}
    made = await edge.client.post("/v1/apis", json=body)
    assert made.status_code == 201, made.text
    assert made.json()["base_url"] == "http://other.test"
    again = await edge.client.post("/v1/apis", json=body)
    assert again.json()["id"] == made.json()["id"]  # replaced, not doubled
    assert len((await edge.client.get("/v1/apis")).json()) == 1


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"name": "mail"}, "either"),
        ({"name": "mail", "url": "http://a.test", "document": {}}, "either"),
        ({"name": "mail", "url": "http://127.0.0.1:9/openapi.json"}, "cannot be reached"),
        ({"name": "mail", "url": "/etc/passwd"}, "http://"),
        ({"name": "mail", "url": "file:///etc/passwd"}, "http://"),
        ({"name": "mail", "url": "http://[broken"}, "http"),
        ({"name": "mail", "document": {"swagger": "2.0"}}, "Swagger 2"),
        ({"name": "mail", "document": {"openapi": "3.1.0", "paths": {}}}, "paths"),
        ({"name": "mail", "document": "a: [not yaml"}, "line"),
        ({"name": "mail", "document": 7}, "document"),
        ({"name": "Mail-Box", "document": {}}, "name"),
        ({"name": "api_docs", "document": DOCUMENT}, "built in"),
        ({"name": "class", "document": DOCUMENT, "nonsense": 1}, "nonsense"),
        ({"name": "mail", "document": DOCUMENT, "server": "mail.test"}, "http"),
    ],
)
async def test_a_document_that_cannot_be_called_is_refused_with_what_to_do(
    edge: Edge, body: object, hint: str
) -> None:
    answer = await edge.client.post("/v1/apis", json=body)
    assert answer.status_code == 400, answer.text
    assert hint in str(problem(answer)["detail"])
    assert (await edge.client.get("/v1/apis")).json() == []


async def test_a_file_of_the_server_is_never_read(edge: Edge, tmp_path: Path) -> None:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(DOCUMENT))
    for url in (str(file), file.as_uri()):
        assert (await edge.client.post("/v1/apis", json={"name": "mail", "url": url})).status_code == 400


async def test_feedback_becomes_the_score_of_an_ended_task(edge: Edge) -> None:
    task_id = await edge.submit()
    body = {"task_id": str(task_id), "score": 0.25, "comment": "half of them"}
    assert (await edge.client.post("/v1/feedback", json=body)).status_code == 409
    async with edge.sessions.begin() as session:
        await task_queue.claim(session, "runner", 30)
        await task_queue.finish(session, task_id, "runner", task_queue.TaskOutcome(state=models.TaskState.DONE))

    assert (await edge.client.post("/v1/feedback", json=body)).status_code == 201
    assert (await edge.client.get(f"/v1/tasks/{task_id}")).json()["score"] == 0.25
    given = (await edge.client.get("/v1/feedback", params={"task_id": str(task_id)})).json()
    assert [(each["score"], each["comment"]) for each in given] == [(0.25, "half of them")]


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
async def test_feedback_that_cannot_be_is_refused(edge: Edge, body: object) -> None:
    answer = await edge.client.post("/v1/feedback", json=body)
    assert answer.status_code == 400
    problem(answer)
