"""Names of operations over REST: given at registration, kept afterwards, part of releases."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.apis import store as apis
from app.db import tables
from app.db.database import Sessions
from app.engine.model_scope import ModelScope
from app.releases import store as releases
from app.releases import tools
from app.releases.tools import Catalogs
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app
from tests.support.rows import LEASE, task_row

URL = "http://mail.test/openapi.json"
LIST = {"/mails": {"get": {"operationId": "mails/list"}}}
MORE = {"/all": {"get": {"operationId": "list_mails"}}, **LIST}


class Site:
    def __init__(self) -> None:
        self.paths: dict[str, Any] = LIST

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
        yield opened


async def put(api: ApiApp, **fields: Any) -> list[str]:
    answer = await api.client.post("/v1/apis", json={"name": "mail", "url": URL, **fields})
    assert answer.status_code == 201, answer.text
    return [each["name"] for each in answer.json()["operations"]]


async def served(api: ApiApp, release_id: Any) -> list[str]:
    """The operations that the tasks of a release may call."""
    async with api.sessions() as session:
        release = await session.get_one(tables.Release, release_id)
        documents = await tools.api_documents(session, release)
    return list((await Catalogs(api.sessions).of(documents)).apps["mail"].operations)


async def test_a_new_api_has_readable_names_and_a_replaced_one_its_own(api: ApiApp) -> None:
    assert await put(api) == ["list_mails"]
    assert (await api.client.get("/v1/apis/mail")).json()["naming"] == "readable"
    async with api.sessions.begin() as session:
        row = await apis.get(session, api.demo.id, "mail")
        row.presentation = {}  # as an earlier version stored it
    assert await put(api) == ["mails_list"]
    assert await put(api, naming="readable") == ["list_mails"]
    assert await put(api, naming="operation_id") == ["mails_list"]


async def test_names_outlast_changes_of_the_document(api: ApiApp, site: Site) -> None:
    await put(api)
    site.paths = MORE
    assert (await api.client.post("/v1/apis/mail/refresh")).json()["change"]["added"] == ["get_all"]
    shown = (await api.client.get("/v1/apis/mail")).json()["operations"]
    assert {each["path"]: each["name"] for each in shown} == {"/all": "get_all", "/mails": "list_mails"}
    assert await put(api) == ["get_all", "list_mails"]
    assert await put(api, name="other") == ["get_all", "list_mails"]


async def test_other_names_make_a_release_that_rolls_back(api: ApiApp) -> None:
    await put(api, naming="operation_id")
    async with api.sessions.begin() as session:
        await task_row(session, api.demo.id)
        task = await queue.claim(session, "me", LEASE)
    assert task is not None
    await put(api, naming="readable")
    async with api.sessions() as session:
        now = (await releases.active(session, api.demo.id)).id
    assert await served(api, task.release_id) == ["mails_list"]
    assert await served(api, now) == ["list_mails"]
    changes = (await api.client.get(f"/v1/releases/{task.release_id}/diff/{now}")).json()["tools"]["changed"]
    assert changes["mail"] == {"added": [], "removed": [], "changed": [], "renamed": {"mails_list": "list_mails"}}


async def test_a_policy_that_was_trained_with_names_as_they_are_written_gets_these(
    committed: Sessions, database_url: str
) -> None:
    document = {"openapi": "3.1.0", "info": {}, "servers": [{"url": "http://mail.test"}], "paths": LIST}
    async with open_api_app(committed, database_url, model_scope=ModelScope(as_written=True)) as api:
        made = await api.client.post("/v1/apis", json={"name": "mail", "document": document})
        assert made.json()["naming"] == "operation_id"
        [remark] = made.json()["remarks"]
        assert remark.startswith("1 of 1 operations have the names of the document, such as mails_list: ")
        assert remark.endswith("`sage apis add --naming readable`) calls it list_mails")
        for naming in ("readable", "operation_id"):
            asked = {"name": "mail", "document": document, "naming": naming}
            shown = (await api.client.post("/v1/apis", json=asked)).json()
            assert (shown["naming"], shown["remarks"]) == (naming, [])
