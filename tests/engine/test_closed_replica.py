"""A model server that is left while requests to it are under way, at any moment of them, leaks no socket."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator

import pytest

from app.engine.replica import Replica, ReplicaLimits
from app.engine.vllm import ReplicaError

_BODY = b'{"data":[{"id":"base"}]}'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
LIMITS = ReplicaLimits(max_in_flight=8, timeout=60, load_timeout=60, vocabulary=10)
_TURNS = 60  # of the event loop, within which a connection opens and a request is sent


class SlowServer:
    """Answers each request some turns of the event loop later."""

    def __init__(self) -> None:
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(_TURNS // 2):
                await asyncio.sleep(0)
            writer.write(_ANSWER)
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[SlowServer]:
    slow = SlowServer()
    listener = await asyncio.start_server(slow.serve, "127.0.0.1", 0)
    slow.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield slow


@pytest.mark.slow
async def test_requests_under_way_end_and_close_their_connections(server: SlowServer) -> None:
    ended = 0
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for turns in range(0, _TURNS, 2):
            replica = Replica(server.url, LIMITS, lambda: None)
            requests = [asyncio.create_task(replica.models()) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await replica.close()
            results = await asyncio.gather(*requests, return_exceptions=True)
            assert all(result == ["base"] or isinstance(result, ReplicaError) for result in results), results
            ended += sum(isinstance(result, ReplicaError) for result in results)
        gc.collect()
    assert ended > _TURNS / 2, "requests were under way"
    assert not [each.message for each in warned if issubclass(each.category, ResourceWarning)]
