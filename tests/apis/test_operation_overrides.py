"""What people set for operations, in place of what their document says."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.apis import store as apis
from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.db import tables
from app.db.database import Sessions
from app.projects.settings import ApprovalRules
from app.releases import store as releases
from app.releases.tools import Catalogs, api_documents
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.rows import LEASE, task_row

URL = "http://mail.test/openapi.json"


class Site:
    """Serves a document that changes."""

    def __init__(self) -> None:
        self.paths: dict[str, Any] = {
            "/mails": {
                "get": {"operationId": "list_mails"},
                "post": {"operationId": "send_mail", "x-risk": "high"},
            },
            "/search": {"post": {"summary": "find"}},
        }

    def answer(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=json.dumps({"openapi": "3.1.0", "info": {}, "paths": self.paths}))


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
async def api(committed: Sessions, database_url: str, site: Site) -> AsyncIterator[ApiApp]:
    transport = httpx.MockTransport(site.answer)
    async with (
        httpx.AsyncClient(transport=transport) as client,
        open_api_app(committed, database_url, http_client=client) as opened,
    ):
        await register(opened)
        yield opened


async def register(api: ApiApp) -> None:
    answer = await api.client.post("/v1/apis", json={"name": "mail", "url": URL})
    assert answer.status_code == 201, answer.text


async def change(api: ApiApp, operation: str, **fields: Any) -> Any:
    answer = await api.client.patch(f"/v1/apis/mail/operations/{operation}", json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def states(api: ApiApp) -> dict[str, Any]:
    answer = await api.client.get("/v1/apis/mail/operations")
    assert answer.status_code == 200, answer.text
    return {each["name"]: each for each in answer.json()}


async def served(api: ApiApp, release_id: Any = None) -> Any:
    """The app that tasks of a release see."""
    async with api.sessions() as session:
        found = releases.active(session, api.demo.id) if release_id is None else releases.get(session, release_id)
        documents = await api_documents(session, await found)
    return (await Catalogs(api.sessions).of(documents)).apps["mail"]


async def test_tasks_see_what_is_set(api: ApiApp) -> None:
    changed = await change(
        api, "post_search", name="find_mails", description="Find mails.\nAll of them.", safe=True
    )
    assert (changed["name"], changed["safe"]) == ("find_mails", True)
    assert changed["set"] == ["name", "description", "safe"]
    await change(api, "send_mail", hidden=True)
    app = await served(api)
    assert list(app.operations) == ["list_mails", "find_mails"]
    found = app.operations["find_mails"]
    assert (found.summary, found.description, found.safe) == ("Find mails.", "Find mails.\nAll of them.", True)
    shown = await states(api)
    assert {name: each["hidden"] for name, each in shown.items()} == {
        "list_mails": False,
        "find_mails": False,
        "send_mail": True,
    }


@pytest.mark.parametrize("method", ["view", "read"])
async def test_a_change_that_another_overtook_is_refused(
    api: ApiApp, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """While one hides an operation or replaces the API, another sets an approval."""
    unchanged, others = getattr(DocumentReader, method), [{"approval": "always"}]

    async def overtaken(reader: DocumentReader, request: ReadRequest, *rest: Any) -> Any:
        found = await unchanged(reader, request, *rest)
        if others and (method == "read" or "list_mails" in request.presentation.overrides):
            await change(api, "send_mail", **others.pop())
        return found

    monkeypatch.setattr(DocumentReader, method, overtaken)
    if method == "view":
        answer = await api.client.patch("/v1/apis/mail/operations/list_mails", json={"hidden": True})
    else:
        answer = await api.client.post("/v1/apis", json={"name": "mail", "url": URL})
    assert (answer.status_code, problem(answer)["detail"]) == (409, "mail was changed meanwhile; try again")
    shown = await states(api)
    assert (shown["send_mail"]["approval"], shown["list_mails"]["hidden"]) == ("always", False)


async def test_null_gives_an_operation_back_to_its_document(api: ApiApp) -> None:
    await change(api, "list_mails", name="mails", safe=False, approval="always")
    back = await change(api, "mails", name=None, safe=None, approval=None)
    assert (back["name"], back["safe"], back["approval"], back["set"]) == ("list_mails", True, None, [])
    async with api.sessions() as session:
        assert (await apis.get(session, api.demo.id, "mail")).presentation == {"naming": "readable"}


async def test_what_is_set_outlasts_the_document(api: ApiApp, site: Site) -> None:
    await change(api, "list_mails", name="mails")
    await change(api, "post_search", name="find", hidden=True)
    site.paths["/mails"]["get"]["operationId"] = "get_mails"  # known by method and path
    site.paths["/search"]["post"]["operationId"] = "searchAll"
    site.paths["/inbox"] = {"post": site.paths["/mails"].pop("post")}  # known by its operationId
    for renewed in (api.client.post("/v1/apis/mail/refresh"), register(api)):
        await renewed
        shown = await states(api)
        assert {name: (each["path"], each["hidden"]) for name, each in shown.items()} == {
            "mails": ("/mails", False),
            "find": ("/search", True),
            "send_mail": ("/inbox", False),
        }


async def test_what_is_set_for_an_operation_that_is_gone_is_listed_and_can_be_undone(
    api: ApiApp, site: Site
) -> None:
    await change(api, "send_mail", name="send", approval="never")
    del site.paths["/mails"]["post"]
    await api.client.post("/v1/apis/mail/refresh")
    gone = (await states(api))["send"]
    assert (gone["gone"], gone["key"], gone["set"]) == (True, "send_mail", ["name", "approval"])
    await change(api, "send", name=None, approval=None)
    assert list(await states(api)) == ["list_mails", "post_search"]


async def test_a_change_makes_a_release_that_rolls_back_and_an_entry_of_the_audit_log(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        await task_row(session, api.demo.id)
        task = await queue.claim(session, "me", LEASE)
    assert task is not None
    await change(api, "list_mails", name="mails")
    assert list((await served(api, task.release_id)).operations) == ["list_mails", "send_mail", "post_search"]
    assert "mails" in (await served(api)).operations
    entries = (await api.client.get("/v1/audit")).json()["entries"]
    [entry] = [each for each in entries if each["action"] == tables.AuditAction.OPERATION_CHANGED]
    assert (entry["detail"]["name"], entry["detail"]["after"]["name"]) == ("mail.list_mails", "mails")


@pytest.mark.parametrize(
    ("operation", "fields", "status", "hint"),
    [
        ("nothing", {"hidden": True}, 404, "list_mails"),
        ("list_mails", {"name": "send_mail"}, 409, "POST /mails"),
        ("list_mails", {"name": "class"}, 400, "keyword"),
        ("list_mails", {"name": "a-b"}, 400, "name"),
        ("list_mails", {"name": "_x"}, 400, "name"),
        ("list_mails", {"approval": "maybe"}, 400, "approval"),
        ("list_mails", {"nonsense": 1}, 400, "nonsense"),
    ],
)
async def test_what_cannot_be_set_is_refused(
    api: ApiApp, operation: str, fields: Any, status: int, hint: str
) -> None:
    answer = await api.client.patch(f"/v1/apis/mail/operations/{operation}", json=fields)
    assert answer.status_code == status, answer.text
    assert hint in str(problem(answer))


async def test_only_an_admin_changes_operations(api: ApiApp) -> None:
    key = await api.key("tasks", project_id=api.demo.id)
    assert (await api.client.get("/v1/apis/mail/operations", headers=key)).status_code == 200
    refused = await api.client.patch("/v1/apis/mail/operations/list_mails", json={"hidden": True}, headers=key)
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("rules", "own", "waits"),
    [
        ({}, "always", True),
        ({"default": "never"}, "always", True),  # it is about this operation, the default is about none
        ({"default": "always"}, "never", False),
        ({"operations": {"mail.*": "always"}}, "never", False),  # so is a pattern with wildcards
        ({"operations": {"mail.*": "never"}}, "always", True),
        ({"operations": {"mail.send": "always"}}, "never", True),  # of two for the same operation, the stricter
        ({"operations": {"mail.send": "never"}}, "always", True),
        ({}, "never", False),  # it counts instead of the document's x-risk
        ({}, None, True),
    ],
)
def test_an_approval_set_for_an_operation_counts_as_a_rule_with_its_exact_name(
    rules: Any, own: Any, waits: bool
) -> None:
    assert ApprovalRules(**rules).wants("mail.send", safe=False, risk="high", own=own) is waits
