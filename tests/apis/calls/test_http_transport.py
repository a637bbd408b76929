"""Servers that reset connections, under the event loop that the server runs on."""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import httpcore
import httpx
import pytest
import uvloop

from app.apis.calls.http_call import HttpCaller, WireRequest
from app.apis.calls.network import open_client
from app.base.errors import EngineError, HostError
from app.base.untrusted_http import HttpTransport
from app.engine import vllm

_AT_ONCE, _ROUNDS = 50, 20
_KEPT = 5

Request = Callable[[str], Awaitable[object]]


@contextmanager
def resetting_server() -> Iterator[str]:
    """Resets each connection as soon as it is open."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the end of the test
                return
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def errors_of(request: Request, url: str) -> Counter[type[BaseException]]:
    """What so many requests, some at once, raise."""
    found = Counter[type[BaseException]]()
    for _ in range(_ROUNDS):
        results = await asyncio.gather(*(request(url) for _ in range(_AT_ONCE)), return_exceptions=True)
        found.update(type(result) for result in results if isinstance(result, BaseException))
    return found


async def call_apis(url: str) -> Counter[type[BaseException]]:
    async with open_client(allow_private_hosts=True) as client:
        caller = HttpCaller(client, timeout=30)
        return await errors_of(lambda target: caller.send(WireRequest("POST", target, {}, b"{}")), url)


async def ask_engine(url: str) -> Counter[type[BaseException]]:
    async with vllm.open_client(_AT_ONCE, 30) as client:
        return await errors_of(lambda target: vllm.send(client, "POST", target, None, {}), url)


async def test_a_call_to_a_server_that_resets_connections_is_an_api_error() -> None:
    with resetting_server() as url:
        found = await asyncio.to_thread(uvloop.run, call_apis(url))
    assert found.total() == _AT_ONCE * _ROUNDS
    assert all(issubclass(error, HostError) for error in found)


async def test_a_model_server_that_resets_connections_is_an_engine_error() -> None:
    with resetting_server() as url:
        found = await asyncio.to_thread(uvloop.run, ask_engine(url))
    assert found.total() == _AT_ONCE * _ROUNDS
    assert all(issubclass(error, EngineError) for error in found)


async def thrice(client: httpx.AsyncClient, method: str, url: str) -> None:
    for _ in range(3):
        await client.request(method, url)


@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("POST", False)])
@pytest.mark.parametrize("broken", [b"", b"no HTTP"])
async def test_a_kept_connection_that_was_closed_meanwhile_costs_no_get(
    method: str, is_repeated: bool, broken: bytes
) -> None:
    """A write may have been carried out: it is not repeated. Nor is anything on a new connection."""
    opened = 0
    answers = 2  # of each connection that is kept; none later

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        for _ in range(answers):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(broken)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, httpx.AsyncClient(transport=HttpTransport(httpx.Limits())) as client:
        assert [(await client.request(method, url)).status_code for _ in range(2)] == [204, 204]
        assert opened == 1
        if is_repeated:
            assert (await client.request(method, url)).status_code == 204
            assert opened == 2
        answers = 0
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await thrice(client, method, url)
        assert opened == (3 if is_repeated else 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
async def test_a_cancelled_request_leaves_no_expired_connection_open(steps: int) -> None:
    """Of some that expired together, while a request that closes them is cancelled after so many steps."""
    opened, is_open = set[asyncio.StreamWriter](), set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.add(writer)
        is_open.add(writer)
        while await reader.readline():
            if (await reader.readuntil(b"\r\n\r\n")).endswith(b"\r\n\r\n"):
                await together.wait()
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        is_open.discard(writer)
        writer.close()

    together = asyncio.Barrier(_KEPT)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    limits = httpx.Limits(keepalive_expiry=0.05)
    async with server, httpx.AsyncClient(transport=HttpTransport(limits)) as client:
        await asyncio.gather(*(client.get(url) for _ in range(_KEPT)))
        before = set(opened)
        assert len(before) == _KEPT
        await asyncio.sleep(0.1)
        request = asyncio.create_task(client.get(url))
        for _ in range(steps):
            await asyncio.sleep(0)
        request.cancel()
        with anyio.fail_after(60):
            while before & is_open:  # noqa: ASYNC110  the server sees an end, no event
                await asyncio.sleep(0.01)


class Taken(httpcore.AsyncConnectionInterface):
    """A connection that a request has begun to use."""

    closed = False

    def is_idle(self) -> bool:
        return False

    async def aclose(self) -> None:
        self.closed = True


async def test_a_connection_that_expired_as_a_request_took_it_serves_that_request() -> None:
    async with httpx.AsyncClient(transport=HttpTransport(httpx.Limits())) as client:
        pool, taken = client._transport._pool, Taken()  # type: ignore[attr-defined]
        await pool._close_connections([taken])
        assert (taken.closed, pool.connections) == (False, [taken])
    assert (taken.closed, pool.connections) == (True, [])
