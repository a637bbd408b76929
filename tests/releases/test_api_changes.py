"""Documents that are fetched again: differences by operation, and skills that call what is gone."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from app.apis.documents.reader import DocumentReader
from app.db.database import Sessions
from app.db.tables import SkillState
from app.releases.refresh import ApiRefresh
from app.skills import store as skills
from tests.support.api_app import ApiApp, open_api_app
from tests.support.ledger_project import until
from tests.support.rows import new_skill


def operation(name: str, *required: str, **more: Any) -> dict[str, Any]:
    parameters = [{"name": each, "in": "query", "required": True, "schema": {}} for each in required]
    return {"operationId": name, "parameters": parameters, **more}


class ChangingSite:
    """Serves one document, whatever it is now."""

    def __init__(self) -> None:
        self.paths: dict[str, Any] = {}
        self.servers: list[dict[str, Any]] = []
        self.status = 200

    def document(self) -> dict[str, Any]:
        about = {"openapi": "3.1.0", "info": {"title": "Mail", "version": "1"}}
        return {**about, "servers": self.servers, "paths": self.paths}

    def answer(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(self.status, text=json.dumps(self.document()))


@pytest.fixture
def site() -> ChangingSite:
    opened = ChangingSite()
    opened.paths = {
        "/mails": {"get": operation("list_mails"), "post": operation("send_mail", "to")},
        "/old": {"delete": operation("wipe", **{"x-risk": "high"})},
    }
    return opened


@pytest.fixture
async def api(committed: Sessions, database_url: str, site: ChangingSite) -> AsyncIterator[ApiApp]:
    transport = httpx.MockTransport(site.answer)
    async with (
        httpx.AsyncClient(transport=transport) as client,
        open_api_app(committed, database_url, http_client=client) as opened,
    ):
        answer = await opened.client.post(
            "/v1/apis", json={"name": "mail", "url": "http://mail.test/openapi.json"}
        )
        assert answer.status_code == 201, answer.text
        yield opened


async def add_skill(api: ApiApp, name: str, call: str, *arguments: str, method: str = "POST") -> Any:
    allowed = {"method": method, "safe": method == "GET", "arguments": {each: ["constant"] for each in arguments}}
    manifest = {"operations": {f"mail.{call}": allowed}}
    async with api.sessions.begin() as session:
        new = msgspec.structs.replace(new_skill(name), apis=[f"mail.{call}"], manifest=manifest)
        return (await skills.add(session, api.demo.id, new)).id


async def state(api: ApiApp, skill_id: Any) -> tuple[str, str]:
    shown = (await api.client.get(f"/v1/skills/{skill_id}")).json()
    return shown["state"], shown["reason"]


async def refresh(api: ApiApp) -> dict[str, Any]:
    answer = await api.client.post("/v1/apis/mail/refresh")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_change_is_recorded_by_operation_and_breaks_only_the_skills_that_no_longer_fit(
    api: ApiApp, site: ChangingSite
) -> None:
    lists = await add_skill(api, "lists", "list_mails", method="GET")
    sends = await add_skill(api, "sends", "send_mail", "to")
    assert await refresh(api) == {"change": None, "failure": None}

    site.paths["/mails"]["get"]["summary"] = "list the mails"
    site.paths["/mails"]["post"] = operation("send_mail", "to", "subject")
    site.paths["/count"] = {"get": operation("count_mails")}
    change = (await refresh(api))["change"]
    assert change["applied"] is True
    assert (change["added"], change["removed"]) == (["count_mails"], [])
    assert change["changed"] == ["list_mails", "send_mail"]
    assert change["skills"] == [str(sends)]
    assert await state(api, sends) == ("quarantined", "no longer what they were: mail.send_mail")
    assert (await state(api, lists))[0] == "active"
    names = [each["name"] for each in (await api.client.get("/v1/apis/mail")).json()["operations"]]
    assert "count_mails" in names
    assert (await api.client.get("/v1/apis/mail/changes")).json() == [change]
    assert (await refresh(api))["change"] is None


async def test_a_removed_operation_quarantines_its_skills_and_makes_a_release(
    api: ApiApp, site: ChangingSite
) -> None:
    skill = await add_skill(api, "sends", "send_mail", "to")
    del site.paths["/mails"]["post"]
    assert (await refresh(api))["change"]["removed"] == ["send_mail"]
    assert (await state(api, skill))[0] == "quarantined"
    async with api.sessions() as session:
        assert (await skills.get(session, skill)).state is SkillState.QUARANTINED


async def test_a_document_that_asks_for_less_supervision_waits_for_a_person(
    api: ApiApp, site: ChangingSite
) -> None:
    before = (await api.client.get("/v1/apis/mail")).json()["digest"]
    site.paths["/old"]["delete"] = operation("wipe", **{"x-safe": True})
    change = (await refresh(api))["change"]
    assert (change["applied"], change["eased"]) == (False, ["wipe"])
    assert (await api.client.get("/v1/apis/mail")).json()["digest"] == before
    assert (await refresh(api))["change"] is None, "it is reported once"
    again = await api.client.post("/v1/apis", json={"name": "mail", "url": "http://mail.test/openapi.json"})
    assert again.json()["digest"] == change["digest"]


async def test_a_document_that_cannot_be_fetched_changes_nothing(api: ApiApp, site: ChangingSite) -> None:
    site.status = 503
    assert "answered with status 503" in (await refresh(api))["failure"]
    shown = (await api.client.get("/v1/apis/mail")).json()
    assert "answered with status 503" in shown["check_failure"]
    assert len(shown["operations"]) == 3
    site.status = 200
    assert await refresh(api) == {"change": None, "failure": None}


@pytest.mark.parametrize("url", ["http://evil.test/", "http://mail.test:81/", "http://{user}.evil.test/v1"])
async def test_a_document_that_names_another_server_waits_for_a_person(
    api: ApiApp, site: ChangingSite, url: str
) -> None:
    site.servers = [{"url": "/v1"}]
    assert (await refresh(api))["change"]["applied"] is True
    site.servers = [{"url": url}]
    assert f"it names another server now, {url.rstrip('/')} in place of" in (await refresh(api))["failure"]
    assert (await api.client.get("/v1/apis/mail")).json()["base_url"] == "http://mail.test/v1"
    allowed = {"token_origins": ["http://evil.test", "http://mail.test:81"]}
    assert (await api.client.patch("/v1/apis/mail", json=allowed)).status_code == 200
    assert (await refresh(api))["failure"] is None or "{" in url
    again = await api.client.post("/v1/apis", json={"name": "mail", "url": "http://mail.test/openapi.json"})
    assert again.json()["base_url"] == url.rstrip("/")


async def test_a_document_that_lets_tasks_choose_another_server_waits_for_a_person(
    api: ApiApp, site: ChangingSite
) -> None:
    hosts = {"default": "mail.test", "enum": ["mail.test"]}
    site.servers = [{"url": "http://{at}/v1", "variables": {"at": hosts}}]
    assert (await refresh(api))["failure"] is None
    site.servers = [{"url": "http://{at}/v1", "variables": {"at": {**hosts, "enum": ["mail.test", "evil.test"]}}}]
    assert "it names another server now" in (await refresh(api))["failure"]


async def test_an_uploaded_document_is_not_fetched(api: ApiApp) -> None:
    body = {
        "name": "own",
        "document": {"openapi": "3.1.0", "paths": {"/a": {"get": {}}}},
        "server": "http://a.test",
    }
    assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    refused = await api.client.post("/v1/apis/own/refresh")
    assert (refused.status_code, "was uploaded" in refused.text) == (409, True)


async def test_a_document_that_is_registered_again_is_compared_with_the_former_one(
    api: ApiApp, site: ChangingSite
) -> None:
    """A person who registers it decides about supervision, too."""
    sends = await add_skill(api, "sends", "send_mail", "to")
    lists = await add_skill(api, "lists", "list_mails", method="GET")
    site.paths["/mails"]["post"] = operation("send_mail", "to", "subject")
    site.paths["/old"]["delete"] = operation("wipe", **{"x-safe": True})
    body = {"name": "mail", "document": site.document(), "server": "http://mail.test"}
    for _ in range(2):
        assert (await api.client.post("/v1/apis", json=body)).status_code == 201
    [change] = (await api.client.get("/v1/apis/mail/changes")).json()
    assert (change["applied"], change["changed"], change["eased"]) == (True, ["send_mail", "wipe"], ["wipe"])
    assert change["skills"] == [str(sends)]
    assert await state(api, sends) == ("quarantined", "no longer what they were: mail.send_mail")
    assert (await state(api, lists))[0] == "active"


async def test_documents_are_fetched_again_when_they_are_due(api: ApiApp, site: ChangingSite) -> None:
    site.paths["/count"] = {"get": operation("count_mails")}
    transport = httpx.MockTransport(site.answer)
    async with httpx.AsyncClient(transport=transport) as client, DocumentReader() as reader:
        async with ApiRefresh(api.sessions, reader, client, hours=1):
            await until(lambda: _changes(api, 0))
        async with ApiRefresh(api.sessions, reader, client, hours=1e-6):
            await until(lambda: _changes(api, 1))


async def _changes(api: ApiApp, number: int) -> bool:
    return len((await api.client.get("/v1/apis/mail/changes")).json()) == number
