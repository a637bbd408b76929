"""A redirect never passes for the answer to another request: what is on the wire, and what the code is told."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from litestar import Response, post
from litestar.params import Body

from app.agent.rollout import ResumeState
from app.apis.approvals.gate import ApprovalDecision, ApprovalGate, ApprovalWantedError
from app.apis.calls.gateway import Gateway
from app.apis.calls.http_call import HttpCaller, WireRequest
from app.apis.calls.network import open_client
from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.base.errors import HostError
from app.base.judge import load_judge
from app.base.values import Json, Stop
from app.projects.settings import ApprovalRules
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills import store as skills
from app.tasks.runner import Runner
from tests.support.document_parts import openapi
from tests.support.every_row import every_row
from tests.support.ledger import Entry, Ledger
from tests.support.ledger_project import OPTIONS, LedgerProject
from tests.support.raw_server import http_answer
from tests.support.recording_server import RecordingServer, recording_server
from tests.support.rollout_bench import Bench
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer

PAGE = http_answer(b"<!DOCTYPE html><title>Sign in</title>", "Content-Type: text/html; charset=utf-8")
LIST = http_answer(b'[{"id": 7}]', "Content-Type: application/json")
CHANGES = ("POST", "PUT", "PATCH", "DELETE")
JSON_ANSWER: Json = {"200": {"content": {"application/json": {"schema": {}}}}}


def moved(status: int, location: str | None, body: bytes = b"", *headers: str) -> bytes:
    where = [] if location is None else [f"Location: {location}"]
    return http_answer(body, *where, *headers, status=f"{status} Elsewhere")


class Calls:
    """Calls `/items` of a server, by any method."""

    def __init__(self, server: RecordingServer, gateway: Gateway) -> None:
        self.server = server
        self.gateway = gateway

    async def call(self, method: str, **arguments: Json) -> Json:
        return await self.gateway(f"shop.{method.lower()}", [], arguments)

    async def refusal(self, method: str, **arguments: Json) -> str:
        with pytest.raises(HostError) as caught:
            await self.call(method, **arguments)
        assert caught.value.kind == "ApiError"
        return caught.value.message


@asynccontextmanager
async def calls(
    answers: Mapping[str, bytes],
    responses: Json = JSON_ANSWER,
    approvals: ApprovalGate | None = None,
    safe: bool | None = None,
) -> AsyncIterator[Calls]:
    body = {"content": {"application/json": {"schema": {"properties": {"name": {"type": "string"}}}}}}
    query = [{"name": "dry", "in": "query", "schema": {"type": "boolean"}}]
    shared: dict[str, Json] = {"responses": responses, "parameters": query}
    shared |= {} if safe is None else {"x-safe": safe}
    item: Json = {each.lower(): {**shared, "operationId": each.lower(), "requestBody": body} for each in CHANGES}
    item["get"] = {**shared, "operationId": "get"}
    async with recording_server(answers) as server, open_client(allow_private_hosts=True) as client:
        app = parse_document("shop", openapi({"/items": item}), server=server.url)
        yield Calls(server, Gateway(Catalog({"shop": app}), client, approvals=approvals))


async def test_a_change_that_is_redirected_is_not_sent_elsewhere_and_its_end_is_unknown() -> None:
    with every_row() as row:
        for method in CHANGES:
            for status in (301, 302, 303, 307, 308):
                for location in (
                    "/login",
                    "/items/",
                    "/items?dry=true",
                    "//other.test/items/",
                    "https://127.0.0.1/items",
                ):
                    if status in (307, 308) and location == "/items/":
                        continue
                    async with calls({f"{method} /items": moved(status, location), "POST /login": PAGE}) as to:
                        with row(method, status, location):
                            told = await to.refusal(method, name="pen")
                            assert told.startswith(f"Response status code is {status}: it redirects to ")
                            assert location.strip("/").split("/")[-1] in told
                            assert f"whether this {method} has changed anything is not known" in told
                            assert to.server.lines == [f"{method} /items"]
                            assert to.gateway.in_doubt == f"shop.{method.lower()}: {told}"
                            with pytest.raises(HostError, match="is not known") as caught:
                                await to.call(method, name="pen")
                            assert (caught.value.kind, len(to.server.lines)) == ("InDoubt", 1)


async def test_a_redirect_without_an_address_leaves_a_change_in_doubt() -> None:
    with every_row() as row:
        for location in (None, "http://[broken"):
            async with calls({"POST /items": moved(302, location)}) as to:
                with row(location):
                    assert "has changed anything is not known" in await to.refusal("POST")
                    assert to.gateway.in_doubt
    async with calls({"PUT /items": moved(304, None)}) as to:
        assert await to.refusal("PUT") == "Response status code is 304: "
        assert to.gateway.in_doubt is None


async def test_307_and_308_repeat_the_same_request_where_only_a_slash_differs() -> None:
    with every_row() as row:
        for method in CHANGES:
            for status in (307, 308):
                there = f"{method} /items/?dry=true"
                async with calls(
                    {f"{method} /items?dry=true": moved(status, "/items/?dry=true"), there: LIST}
                ) as to:
                    with row(method, status):
                        assert await to.call(method, name="pen", dry=True) == [{"id": 7}]
                        first, second = to.server.received
                        assert second == first._replace(line=there)
                        assert second.body == b'{"name":"pen"}'
        for location in ("/items/", "/items/?dry=false", "/items/x?dry=true", "/items//?dry=true"):
            async with calls({"POST /items?dry=true": moved(308, location)}) as to:
                with row(location):
                    assert "is not known" in await to.refusal("POST", dry=True)
                    assert len(to.server.received) == 1


async def test_a_redirect_brings_no_credentials_of_its_own() -> None:
    async with calls({}) as to:
        there = to.server.url.replace("//", "//evil:word@")
        to.server.answers = {"GET /items": moved(302, f"{there}/v2"), "PUT /items": moved(308, f"{there}/items/")}
        await to.call("GET")
        await to.call("PUT")
        assert to.server.lines == ["GET /items", "GET /v2", "PUT /items", "PUT /items/"]
        assert not any("authorization" in each.headers for each in to.server.received)


async def test_a_redirect_that_repeats_without_an_end_is_given_up() -> None:
    async with calls({"POST /items": moved(307, "/items")}) as to:
        assert "redirects more than 5 times; whether" in await to.refusal("POST")
        assert to.gateway.in_doubt


async def test_a_redirect_is_the_result_of_a_change_where_the_document_lists_its_status() -> None:
    answered = moved(303, "/items/8", b"created", "Content-Type: text/plain")
    with every_row() as row:
        for method in CHANGES:
            for listed in ("303", 303, "3XX"):
                async with calls({f"{method} /items": answered}, {**JSON_ANSWER, listed: {}}) as to:
                    with row(method, listed):
                        whole = await to.gateway.answer_call(f"shop.{method.lower()}", [], {})
                        assert (whole.value, whole.status, whole.headers["location"]) == (
                            "created",
                            303,
                            "/items/8",
                        )
                        assert len(to.server.received) == 1
                        assert to.gateway.in_doubt is None
    async with calls({"POST /items": answered}, {**JSON_ANSWER, "302": {}, "default": {}}) as to:
        assert "is not known" in await to.refusal("POST")
    page = moved(302, "/items/8", b"<html>Redirecting</html>", "Content-Type: text/html")
    async with calls({"POST /items": page}, {**JSON_ANSWER, "302": {}}) as to:
        assert await to.call("POST") == "<html>Redirecting</html>"


async def test_a_read_follows_within_its_server() -> None:
    with every_row() as row:
        for status in (301, 302, 303, 307, 308):
            async with calls({"GET /items": moved(status, "/v2/items"), "GET /v2/items": LIST}) as to:
                with row(status):
                    assert await to.call("GET") == [{"id": 7}]
                    assert to.server.lines == ["GET /items", "GET /v2/items"]
            async with calls({"GET /items": moved(status, "http://localhost:1/items")}) as to:
                with row(status, "elsewhere"):
                    assert "another server, http://localhost:1/items" in await to.refusal("GET")
                    assert (len(to.server.received), to.gateway.in_doubt) == (1, None)
    async with calls({"POST /items": moved(301, "/items/"), "POST /items/": LIST}, safe=True) as to:
        assert await to.call("POST", name="pen") == [{"id": 7}], "a search is sent again, body and all"
        assert [each.body for each in to.server.received] == [b'{"name":"pen"}'] * 2
    for status, repeated in ((302, "GET"), (303, "GET"), (307, "POST"), (308, "POST")):
        answers = {"POST /items": moved(status, "/v2/items"), f"{repeated} /v2/items": LIST}
        async with calls(answers, safe=True) as to:
            assert await to.call("POST", name="pen") == [{"id": 7}]
            assert to.server.lines == ["POST /items", f"{repeated} /v2/items"]


async def test_a_read_follows_from_http_to_https_of_the_same_host() -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(str(request.url))
        if request.url.scheme == "https":
            return httpx.Response(200, json=[7])
        return httpx.Response(301, headers={"Location": f"https://{request.url.params['to']}/items"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        caller = HttpCaller(client, timeout=60)
        followed = await caller.send(WireRequest("GET", "http://shop.test/items?to=shop.test", {}, None))
        assert (followed.value, sent[1:]) == ([7], ["https://shop.test/items"])
        with pytest.raises(HostError, match=re.escape("another server, https://other.test/items")):
            await caller.send(WireRequest("GET", "http://shop.test/items?to=other.test", {}, None))
        assert len(sent) == 3


async def test_who_approved_a_read_has_approved_its_address_alone() -> None:
    for location, follows in (("/items/", True), ("/secrets", False)):
        decisions: list[ApprovalDecision] = []
        gate = ApprovalGate(ApprovalRules(operations={"shop.get": "always"}), decisions)
        answers = {"GET /items": moved(302, location), "GET /items/": LIST, "GET /secrets": LIST}
        async with calls(answers, approvals=gate) as to:
            with pytest.raises(ApprovalWantedError) as asked:
                await to.call("GET")
            decisions.append(ApprovalDecision(seq=0, digest=asked.value.request.digest, state="approved"))
            if follows:
                assert await to.call("GET") == [{"id": 7}]
            else:
                assert f"it redirects to {to.server.url}/secrets, which is not followed" in await to.refusal("GET")
            assert len(to.server.received) == 1 + follows


async def test_a_page_is_no_answer_where_the_document_promises_json() -> None:
    bare = http_answer(b" <html><body>Sign in</body></html>")
    claims = http_answer(b"<!doctype html>", "Content-Type: application/json")
    with every_row() as row:
        for method in ("GET", *CHANGES):
            for page in (PAGE, bare, claims):
                async with calls({f"{method} /items": page}) as to:
                    with row(method, page):
                        told = await to.refusal(method)
                        assert told.startswith(
                            "Response status code is 200: an HTML page, where the document promises"
                        )
                        assert ("is not known" in told) is (to.gateway.in_doubt is not None) is (method != "GET")
        either: Json = {"200": {"content": {"text/html": {}, "application/json": {}}}}
        unsaid: list[Json] = [either, {"200": {}}, {}, {"default": JSON_ANSWER["200"]}]
        for responses in unsaid:
            async with calls({"POST /items": PAGE}, responses) as to:
                with row(str(responses)):
                    assert "Sign in" in await to.call("POST")
        for body in (b'{"id": 7}', b"done", b""):
            async with calls({"POST /items": http_answer(body, "Content-Type: text/html")}) as to:
                with row(body):
                    assert await to.call("POST") == (body.decode() or None), "no page, though it is called one"
    async with calls({"GET /items": moved(302, "/login"), "GET /login": PAGE}) as to:
        assert "an HTML page" in await to.refusal("GET")


class Moved(Ledger):
    """It redirects who writes, and says nothing about it in its document."""

    def _routes(self) -> list[Any]:
        @post("/entries", operation_id="add_entry", summary="write one entry")
        async def add_entry(data: Annotated[Entry, Body()]) -> Response[None]:  # noqa: ARG001
            return Response(None, status_code=302, headers={"Location": "/login"})

        return [add_entry, *super()._routes()[1:]]


CAUGHT = """
def write():
    for _ in range(3):
        try:
            apis.ledger.add_entry(text='hello')
        except Exception as error:
            print(type(error).__name__, error)
    return 'written'

answer = write()
apis.supervisor.complete_task(answer=answer)
"""


async def test_code_that_catches_the_error_of_a_redirected_change_ends_its_task_in_doubt(tmp_path: Path) -> None:
    async with ForkedSandbox(bwrap=False) as sandbox:
        bench = Bench(sandbox, byte_tokenizer(tmp_path))
        bench.ledger = Moved()
        ended = await bench.run(block(CAUGHT), block("print(1)"))
        begun = ResumeState(begun=msgspec.structs.replace(ended.turns[0], calls=()), known=ended.calls)
        resumed = await bench.run(resume=begun)
    for each in (ended, resumed):
        assert (each.stop, len(each.turns), len(each.calls)) == (Stop.IN_DOUBT, 1, 1)
        assert each.answer is None, "it could be scored"
        assert each.detail.startswith("ledger.add_entry: Response status code is 302: it redirects to http")
        assert each.turns[0].observation.startswith("ApiError Response status code is 302: it redirects to http")
    assert ended.turns[0].observation == resumed.turns[0].observation


async def test_a_task_whose_change_was_redirected_is_no_success_and_leaves_no_skill(
    project: LedgerProject,
) -> None:
    engine = ScriptedEngine(project.tokenizer, script=lambda *_: block(CAUGHT))
    async with Moved().client() as client:
        executor = replace(project, client=client).executor(engine)
        executor = replace(executor, judge=load_judge("tests.tasks.test_judge:load_constant_judge?score=1"))
        async with Runner(project.sessions, executor.execute, OPTIONS):
            checked = await project.ended(await project.submit(check_code="score = float(answer == 'written')"))
            unchecked = await project.ended(await project.submit())
    for row in (checked, unchecked):
        assert row.stop == Stop.IN_DOUBT
        assert "whether this POST has changed anything is not known" in str(row.failure)
        async with project.sessions() as session:
            assert list(await skills.made_by(session, row.id)) == []
    assert (checked.score, unchecked.score) == (0.0, None)
