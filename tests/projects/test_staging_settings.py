"""Staging servers as a project's settings: those that its tasks call are refused when they are named."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app, problem


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        await opened.key("admin")
        for name in ("mail", "files"):
            await register(opened, name, f"http://{name}.test/v1")
        yield opened


async def register(api: ApiApp, name: str, server: str) -> None:
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": server}],
        "paths": {"/x": {"get": {"operationId": "look", "responses": {}}}},
    }
    answer = await api.client.post("/v1/apis", json={"name": name, "document": document})
    assert answer.is_success, answer.text


async def change(api: ApiApp, staging: Any) -> Any:
    return await api.client.patch("/v1/projects/demo", json={"settings": {"staging": staging}})


async def staging(api: ApiApp) -> Any:
    return (await api.client.get("/v1/projects/demo")).json()["settings"]["staging"]


@pytest.mark.parametrize("server", ["http://mail.test/v1", "http://mail.test/staging", "https://files.test"])
async def test_a_server_that_tasks_call_is_refused_and_nothing_is_stored(api: ApiApp, server: str) -> None:
    answer = await change(api, {"mail": {"server": server}})
    assert answer.status_code == 400
    assert str(problem(answer)["detail"]).startswith("staging.mail.server is at a server that tasks call, http")
    assert await staging(api) == {}


async def test_so_is_an_address_of_a_reset(api: ApiApp) -> None:
    reset = {"reset_url": "http://files.test/reset", "reset_secret": "key"}
    answer = await change(api, {"mail": {"server": "http://staging.test"} | reset})
    assert answer.status_code == 400
    assert str(problem(answer)["detail"]).startswith("staging.mail.reset_url is at a server that tasks call")
    assert await staging(api) == {}


async def test_another_server_is_stored_also_before_its_api(api: ApiApp) -> None:
    for name in ("mail", "later"):
        assert (await change(api, {name: {"server": "http://staging.test"}})).status_code == 200
    assert set(await staging(api)) == {"mail", "later"}


async def test_what_an_api_has_taken_since_does_not_keep_other_settings_from_changing(api: ApiApp) -> None:
    await change(api, {"mail": {"server": "http://staging.test"}})
    await register(api, "mail", "http://staging.test")
    patch = {"settings": {"staging": {"files": {"server": "http://other.test"}}, "skills": "open"}}
    answer = await api.client.patch("/v1/projects/demo", json=patch)
    assert answer.status_code == 200
