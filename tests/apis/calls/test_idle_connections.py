"""Idle connections to live APIs: none is used again that its server may be closing."""

import asyncio
from asyncio import StreamReader, StreamWriter

import pytest

from app.apis.calls.network import open_client

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class CountingServer:
    """Keeps its connections open, and counts them."""

    def __init__(self) -> None:
        self.connections = 0

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(_ANSWER)
                await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()


@pytest.mark.parametrize("pause", [0.0, 2.2])
async def test_a_connection_that_was_idle_is_left(pause: float) -> None:
    server = CountingServer()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, open_client(allow_private_hosts=True) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
        await asyncio.sleep(pause)
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
    assert server.connections == (2 if pause else 1)
