"""Streams that are open when their key is revoked, or when the session of the console ends."""

import re
from collections.abc import AsyncIterator

import pytest

from app.db.database import Sessions
from app.projects import keys
from tests.support.api_app import ApiApp, open_api_app
from tests.support.chats import HELLO
from tests.support.http_server import served
from tests.support.queued_runs import queued
from tests.tasks.test_task_events_api import append_events


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def read_until(lines: AsyncIterator[str], wanted: str) -> None:
    while wanted not in await anext(lines):
        pass


async def rest_of(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines]


async def test_a_stream_sends_no_more_events_once_its_key_is_revoked(api: ApiApp) -> None:
    task_id = await api.submit()
    async with api.sessions.begin() as session:
        key, secret = await keys.create(session, "leaked", ["tasks"])
    own = {"Authorization": f"Bearer {secret}"}
    async with served(api) as client, client.stream("GET", f"/v1/tasks/{task_id}/events", headers=own) as answer:
        lines = answer.aiter_lines()
        await append_events(api, task_id, "turn")
        await read_until(lines, "event: turn")
        assert (await api.client.delete(f"/v1/keys/{key.id}")).status_code == 204
        await append_events(api, task_id, "call")
        assert "event: call" not in await rest_of(lines)


@pytest.mark.parametrize("console", [False, True])
async def test_the_stream_of_a_run_ends_with_its_key(api: ApiApp, console: bool) -> None:
    async with api.sessions.begin() as session:
        run = await queued(session, api.demo.id)
        key, secret = await keys.create(session, "leaked", ["admin"])
        visit = await keys.begin(session, key.id)
    async with served(api) as client:
        named = f"sage_console_{client.base_url.port}={visit}"
        headers = {"Cookie": named} if console else {"Authorization": f"Bearer {secret}"}
        address = f"/console/runs/{run.id}/live" if console else f"/v1/training-runs/{run.id}/events"
        async with client.stream("GET", address, headers=headers) as answer:
            lines = answer.aiter_lines()
            await read_until(lines, "data: ")
            assert (await api.client.delete(f"/v1/keys/{key.id}")).status_code == 204
            await rest_of(lines)


async def test_the_live_page_of_a_task_ends_with_the_session_that_signs_out(api: ApiApp) -> None:
    task_id = await api.submit()
    headers = await api.key("tasks")
    async with served(api) as browser:
        key = headers["Authorization"].removeprefix("Bearer ")
        await browser.post("/console/sign-in", data={"key": key})
        page = (await browser.get(f"/console/tasks/{task_id}")).text
        found = re.search(r'name="csrf" value="(\w+)"', page)
        assert found
        async with browser.stream("GET", f"/console/tasks/{task_id}/live") as answer:
            lines = answer.aiter_lines()
            await append_events(api, task_id, "prompt")
            await read_until(lines, "id: 1")
            await browser.post("/console/sign-out", data={"csrf": found[1]})
            await append_events(api, task_id, "prompt")
            assert "id: 2" not in await rest_of(lines)


async def test_the_stream_of_a_chat_ends_with_its_key_and_the_task_goes_on(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        key, secret = await keys.create(session, "leaked", ["tasks"])
    body, own = {"model": "demo", "messages": HELLO, "stream": True}, {"Authorization": f"Bearer {secret}"}
    async with (
        served(api) as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers=own) as answer,
    ):
        lines = answer.aiter_lines()
        await read_until(lines, "data: ")
        assert (await api.client.delete(f"/v1/keys/{key.id}")).status_code == 204
        assert "[DONE]" not in "".join(await rest_of(lines))
    [task] = (await api.client.get("/v1/tasks")).json()["tasks"]
    assert task["state"] == "accepted"
