"""Servers that reset connections, under the event loop that the server runs on."""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvloop

from app.engine import vllm_api
from app.errors import EngineError, HostError
from app.gateway.http_call import HttpCaller
from app.gateway.http_client import open_client
from app.gateway.wire_request import WireRequest

_AT_ONCE, _ROUNDS = 50, 20

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
    async with vllm_api.open_client(_AT_ONCE, 30) as client:
        return await errors_of(lambda target: vllm_api.send(client, "POST", target, None, {}), url)


async def test_a_call_to_a_server_that_resets_connections_is_an_api_error() -> None:
    with resetting_server() as url:
        found = await asyncio.to_thread(uvloop.run, call_apis(url))
    assert found == {HostError: _AT_ONCE * _ROUNDS}


async def test_a_model_server_that_resets_connections_is_an_engine_error() -> None:
    with resetting_server() as url:
        found = await asyncio.to_thread(uvloop.run, ask_engine(url))
    assert found.total() == _AT_ONCE * _ROUNDS
    assert all(issubclass(error, EngineError) for error in found)
