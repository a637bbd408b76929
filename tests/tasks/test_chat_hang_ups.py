"""Clients of chats that leave before the answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from app.db.tables import TaskState
from tests.support.approving import WRITE, ApprovingProject
from tests.support.chats import ANSWER, HELLO, ended_as
from tests.support.listening_app import listening_app


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_cancels_its_task(demo: ApprovingProject, stream: bool) -> None:
    headers = await demo.api.key("tasks")
    body = {"model": "demo", "messages": HELLO, "stream": stream}
    async with (
        listening_app(demo.api.app, lifespan="off") as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=300) as client,
    ):
        asking = asyncio.create_task(_read(client, body))
        await ended_as(demo, TaskState.ACCEPTED)
        asking.cancel()
        row = await ended_as(demo, TaskState.CANCELLED)
        assert [kind for kind, _ in await demo.project.events(row.id)] == ["done"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_wait_for_the_first_byte_cancels_its_task(
    demo: ApprovingProject, stream: bool
) -> None:
    """Its connection is closed when the answer begins."""
    headers = await demo.api.key("tasks")
    body = {"model": "demo", "messages": HELLO, "stream": stream}

    async def hung_up(scope: Any, receive: Any, send: Any) -> None:
        async def request() -> AsyncIterator[Any]:
            while (part := await receive()).get("more_body"):
                yield part
            yield part
            while True:
                yield {"type": "http.disconnect"}

        await demo.api.app(scope, request().__anext__, send)

    transport = httpx.ASGITransport(hung_up)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
        with suppress(AssertionError):  # of the transport, which wants a whole answer
            await client.post("/v1/chat/completions", json=body)
    await ended_as(demo, TaskState.CANCELLED)


@pytest.mark.parametrize("stream", [False, True])
async def test_with_an_idempotency_key_the_task_goes_on_and_the_request_can_be_repeated(
    demo: ApprovingProject, stream: bool
) -> None:
    headers = await demo.api.key("tasks") | {"Idempotency-Key": "once"}
    body = {"model": "demo", "messages": HELLO, "stream": stream}
    async with (
        listening_app(demo.api.app, lifespan="off") as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=300) as client,
    ):
        asking = asyncio.create_task(_read(client, body))
        await ended_as(demo, TaskState.ACCEPTED)
        asking.cancel()
        async with demo.project.runner(demo.engine(WRITE, ANSWER)):
            first, second = [await _read(client, body) for _ in range(2)]
        assert first == second
        assert '{\\"id\\":2}' in first
        other = await client.post("/v1/chat/completions", json={**body, "messages": HELLO * 2})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert other.headers["x-should-retry"] == "false"
    assert demo.written() == ["one", "one"]


async def _read(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        return "".join([line async for line in response.aiter_lines() if not line.startswith(":")])
