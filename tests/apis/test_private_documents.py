"""`POST /v1/apis` with a URL that leads to this machine or its network, where that is not allowed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.apis.calls.network import open_client
from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.raw_server import http_answer, raw_server
from tests.support.small_internet import SmallInternet, moved

SECRET = b'{"openapi": "3.1.0", "servers": [{"url": "http://a.test"}], "paths": {"/x": {"get": {}}}}'


@asynccontextmanager
async def closed_app(sessions: Sessions, database_url: str, internet: SmallInternet) -> AsyncIterator[ApiApp]:
    async with (
        internet.online(),
        open_client(allow_private_hosts=False, network=internet.public) as client,
        open_api_app(sessions, database_url, http_client=client) as api,
    ):
        yield api


async def refused(api: ApiApp, url: str) -> str:
    """The reason; nothing is stored."""
    answer = await api.client.post("/v1/apis", json={"name": "mail", "url": url})
    assert answer.status_code == 400, answer.text
    assert (await api.client.get("/v1/apis")).json() == []
    return str(problem(answer)["detail"])


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "[64:ff9b::7f00:1]", "[::ffff:127.0.0.1]", "localhost", "inside.test", "0x7f.1"],
)
async def test_a_document_of_a_private_host_is_refused(committed: Sessions, database_url: str, host: str) -> None:
    internet = SmallInternet({"inside.test": ["10.0.0.1"]}, {"/openapi.json": http_answer(SECRET)})
    async with closed_app(committed, database_url, internet) as api:
        assert "private address" in await refused(api, f"http://{host}/openapi.json")
    assert internet.reached == []


async def test_a_redirect_to_a_private_host_is_not_followed(committed: Sessions, database_url: str) -> None:
    async with raw_server(http_answer(SECRET)) as inside:
        internet = SmallInternet({"docs.test": ["9.9.9.9"]}, {"/openapi.json": moved(inside)})
        async with closed_app(committed, database_url, internet) as api:
            reason = await refused(api, "http://docs.test/openapi.json")
            assert "127.0.0.1 is at the private address" in reason
    assert internet.reached == ["9.9.9.9"]


async def test_a_document_of_a_public_host_is_read(committed: Sessions, database_url: str) -> None:
    internet = SmallInternet({"docs.test": ["9.9.9.9"]}, {"/openapi.json": http_answer(SECRET)})
    async with closed_app(committed, database_url, internet) as api:
        body = {"name": "mail", "url": "http://docs.test/openapi.json"}
        assert (await api.client.post("/v1/apis", json=body)).status_code == 201
