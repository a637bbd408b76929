"""The session of the console: how it begins and ends, and what a forged form gets."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest

from app.db import keys, sign_ins
from app.db.database import Sessions
from tests.api_app import ApiApp, asgi_client, open_api_app


@pytest.fixture
async def api(sessions: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(sessions, database_url) as opened:
        yield opened


@pytest.fixture
async def browser(api: ApiApp) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(api.app, {}) as client:
        yield client


async def _key(api: ApiApp, *scopes: str) -> str:
    return (await api.key(*scopes))["Authorization"].removeprefix("Bearer ")


async def _sign_in(browser: httpx.AsyncClient, key: str, **fields: str) -> httpx.Response:
    return await browser.post("/console/sign-in", data={"key": key, **fields})


def _csrf(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert found, page.text
    return found[1]


async def test_a_key_is_exchanged_for_a_session(api: ApiApp, browser: httpx.AsyncClient) -> None:
    key = await _key(api, "tasks")
    unknown = await browser.get("/console?project=demo")
    assert unknown.headers["location"] == "/console/sign-in?next=%2Fconsole%3Fproject%3Ddemo"
    answer = await _sign_in(browser, key, next="/console?project=demo")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console?project=demo")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Path=/console", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert key not in cookie
    page = await browser.get("/console?project=demo")
    assert page.status_code == 200
    assert "<strong>test</strong><br>tasks" in page.text
