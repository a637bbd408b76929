"""Slow, numerous and oversized clients, with raw sockets against the server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx
import msgspec
import pytest
from structlog.testing import capture_logs

from app.db import results
from app.db.database import Sessions
from app.web.server import ConnectionLimits
from tests.support.api_app import ApiApp, open_api_app
from tests.support.http_server import served
from tests.support.ledger_project import until

_QUICK = ConnectionLimits(header_seconds=0.5, body_seconds=0.5)


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


class Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def rest(self) -> bytes:
        """What the server still sends, until it closes."""
        return await self.reader.read()

    async def trickle(self, data: bytes, seconds: float = 0.1) -> bytes:
        """Send byte by byte, again and again, until the server closes. Returns what it sent."""
        answer = asyncio.create_task(self.rest())
        while not answer.done():
            for byte in data:
                if answer.done():
                    break
                self.writer.write(bytes([byte]))
                await asyncio.wait([answer], timeout=seconds)
        return answer.result()


@asynccontextmanager
async def connected(client: httpx.AsyncClient) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


def post(api: ApiApp, *headers: str) -> bytes:
    lines = ["POST /v1/tasks HTTP/1.1", "Host: test", f"Authorization: {api.client.headers['authorization']}"]
    return "\r\n".join([*lines, "Content-Type: application/json", *headers, "", ""]).encode()


async def test_a_connection_that_sends_nothing_is_closed(api: ApiApp) -> None:
    async with served(api, _QUICK) as client, connected(client) as idle:
        assert await idle.rest() == b""


async def test_a_client_that_hangs_up_while_it_sends_is_no_error_of_the_server(api: ApiApp) -> None:
    with capture_logs() as logged:
        async with served(api) as client:
            async with connected(client) as leaving:
                await leaving.send(post(api, "Content-Length: 100") + b'{"instruction"')
            await until(lambda: any(each.get("path") == "/v1/tasks" for each in logged))
    assert [each["status"] for each in logged if each.get("path") == "/v1/tasks"] == [400]
    assert not [each for each in logged if each["log_level"] == "error"]


async def test_headers_that_arrive_byte_by_byte_are_cut_off_in_time(api: ApiApp) -> None:
    async with served(api, _QUICK) as client, connected(client) as slow:
        await slow.send(b"GET /healthz HTTP/1.1\r\nHost: test\r\nX-Slow: ")
        before = time.monotonic()
        assert (await slow.trickle(b"a")).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - before < 30


async def test_empty_lines_do_not_keep_a_connection_open(api: ApiApp) -> None:
    async with served(api, _QUICK) as client, connected(client) as slow:
        await slow.send(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
        answer = await slow.trickle(b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in answer


async def test_a_body_that_arrives_byte_by_byte_is_cut_off_in_time(api: ApiApp) -> None:
    async with served(api, _QUICK) as client, connected(client) as slow:
        await slow.send(post(api, "Content-Length: 100000"))
        assert (await slow.trickle(b" ")).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_nobody_reads_is_cut_off_too(api: ApiApp) -> None:
    async with served(api, ConnectionLimits(body_seconds=60)) as client, connected(client) as slow:
        await slow.send(b"POST /v1/tasks HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n")
        assert (await slow.trickle(b" ")).startswith(b"HTTP/1.1 401 ")


async def test_a_body_that_makes_progress_may_take_longer_than_the_time_for_a_slow_one(api: ApiApp) -> None:
    body = b'{"instruction": "tidy up"' + b" " * 60_000 + b"}"
    async with served(api, _QUICK) as client, connected(client) as steady:
        await steady.send(post(api, f"Content-Length: {len(body)}", "Connection: close"))
        for start in range(0, len(body), 12_000):
            await steady.send(body[start : start + 12_000])
            await asyncio.sleep(0.2)
        assert (await steady.rest()).startswith(b"HTTP/1.1 202 ")


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX-Large: ", b"GET / HTTP/1.1\r\nx: "])
async def test_headers_without_an_end_are_refused_by_their_size(api: ApiApp, start: bytes) -> None:
    async with served(api) as client, connected(client) as large:
        await large.send(start + b"a" * 200_000)
        assert (await large.rest()).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "9.9"])
async def test_other_versions_of_http_are_refused(api: ApiApp, version: str) -> None:
    async with served(api) as client, connected(client) as other:
        await other.send(f"GET /healthz HTTP/{version}\r\nHost: test\r\n\r\n".encode())
        answer = await other.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-type: application/problem+json" in head
        assert json.loads(body)["error"] == "InvalidError"


async def test_trailers_without_an_end_are_refused_by_their_size(api: ApiApp) -> None:
    async with served(api) as client, connected(client) as large:
        await large.send(post(api, "Transfer-Encoding: chunked") + b"1\r\n{\r\n0\r\nX-Large: ")
        await asyncio.sleep(0.1)
        await large.send(b"a" * 200_000)
        assert b" 431 " in (await large.rest()).partition(b"\r\n")[0]


async def test_an_address_may_have_only_so_many_connections_and_others_after_it_closed_some(api: ApiApp) -> None:
    async with served(api, ConnectionLimits(connections_per_address=3)) as client:
        async with connected(client), connected(client), connected(client), connected(client) as refused:
            answer = await refused.rest()
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in answer

        async def is_served() -> bool:
            return (await client.get("/healthz")).status_code == 200

        await until(is_served)


async def test_proxies_may_have_more_connections_up_to_the_limit_of_all(api: ApiApp) -> None:
    limits = ConnectionLimits(connections_per_address=1, connections=3)
    async with (
        served(api, limits, trusted_proxies="127.0.0.0/8") as client,
        connected(client),
        connected(client),
        connected(client) as third,
        connected(client) as fourth,
    ):
        await third.send(b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        assert (await third.rest()).startswith(b"HTTP/1.1 200 ")
        assert (await fourth.rest()).startswith(b"HTTP/1.1 503 ")


async def test_only_trusted_proxies_are_believed_whom_they_forward(api: ApiApp) -> None:
    async def statuses(trusted: str) -> list[int]:
        async with served(api, trusted_proxies=trusted) as client:
            forwarded = [f"192.0.2.99, 192.0.2.{number}" for number in range(40)]
            headers = [{"Authorization": "Bearer guess", "X-Forwarded-For": each} for each in forwarded]
            return [(await client.get("/v1/projects", headers=each)).status_code for each in headers]

    assert set(await statuses("127.0.0.1")) == {401}
    assert 429 in await statuses("")


async def test_event_streams_outlast_the_time_for_requests(api: ApiApp) -> None:
    task = await api.submit()
    async with (
        served(api, _QUICK) as client,
        client.stream(
            "GET", f"/v1/tasks/{task}/events", headers={"Upgrade": "h2c", "Connection": "Upgrade"}
        ) as stream,
    ):
        await asyncio.sleep(1)
        async with api.sessions.begin() as session:
            await results.append(session, task, "done", {})
        lines = [line async for line in stream.aiter_lines()]
        assert "event: done" in lines


async def test_a_connection_is_used_again_for_many_requests(api: ApiApp) -> None:
    async with served(api, msgspec.structs.replace(_QUICK, connections=1)) as client:
        for _ in range(5):
            assert (await client.get("/v1/projects")).status_code == 200
            await asyncio.sleep(0.2)


async def test_a_connection_is_kept_while_clients_keep_theirs(api: ApiApp) -> None:
    async with served(api) as client, connected(client) as kept:
        for pause in (0, 5.5):  # httpx keeps an idle connection for five seconds
            await asyncio.sleep(pause)
            await kept.send(b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n")
            answer = await kept.reader.readuntil(b"}")
            assert answer.startswith(b"HTTP/1.1 200")
