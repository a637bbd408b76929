"""An Internet of one server: every address leads to it, and a name may resolve to another address each time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpcore

from app.apis.calls.network import PublicNetwork, resolve


class SmallInternet(httpcore.AsyncNetworkBackend):
    """`reached` are the addresses that were connected to, `requests` the heads of what the server received.

    `answers` are those to the requests for a path, or are made of their heads.
    """

    def __init__(
        self, names: Mapping[str, Iterable[str]], answers: Mapping[str, bytes | Callable[[str], bytes]]
    ) -> None:
        self._names = {name: iter(addresses) for name, addresses in names.items()}
        self._answers = answers
        self._port = 0
        self._routes = httpcore.AnyIOBackend()
        self.reached: list[str] = []
        self.requests: list[str] = []

    @property
    def public(self) -> PublicNetwork:
        """The part of it that may be connected to."""
        return PublicNetwork(self._resolve, self)

    async def connect_tcp(self, host: str, port: int, *rest: Any, **more: Any) -> httpcore.AsyncNetworkStream:  # noqa: ARG002
        self.reached.append(host)
        return await self._routes.connect_tcp("127.0.0.1", self._port, *rest, **more)

    async def _resolve(self, host: str, port: int) -> list[str]:
        return [next(self._names[host])] if host in self._names else await resolve(host, port)

    @asynccontextmanager
    async def online(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self._port = server.sockets[0].getsockname()[1]
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.requests.append(head)
                answer = self._answers[head.split()[1].partition("?")[0]]
                writer.write(answer if isinstance(answer, bytes) else answer(head))
                await writer.drain()
        writer.close()


def found(body: bytes) -> bytes:
    """An answer that leaves the connection open."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def moved(location: str, connection: str = "keep-alive") -> bytes:
    head = f"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: {connection}\r\nLocation: {location}\r\n\r\n"
    return head.encode()
