"""A proxy of connections that can be cut like a network: reset, or silent with all that is sent kept back."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

import msgspec

_CHUNK = 1 << 16


class Address(msgspec.Struct, frozen=True):
    """A TCP port of this machine, or a Unix socket."""

    place: int | Path

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self.place, Path):
            return await asyncio.open_unix_connection(self.place)
        return await asyncio.open_connection("127.0.0.1", self.place)


class CutProxy:
    """While entered, forwards connections to `listen` to `target`. It listens on a free port without `listen`."""

    def __init__(self, target: Address, listen: Path | None = None) -> None:
        self._target, self._listen = target, listen
        self._flows = asyncio.Event()
        self._flows.set()
        self._connections = set[asyncio.Task[None]]()
        self._writers = set[asyncio.StreamWriter]()
        self.port = 0

    async def __aenter__(self) -> Self:
        if self._listen is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
        else:
            self._server = await asyncio.start_unix_server(self._serve, self._listen)
            self._listen.chmod(0o777)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._flows.set()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Break all connections: what is on its way is lost."""
        for writer in list(self._writers):
            with suppress(OSError):
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0"
                )
            writer.transport.abort()

    @asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        """Nothing arrives any more, on old and on new connections; at the end of the block all of it does."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        try:
            await self._flows.wait()
            with suppress(OSError):
                await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the proxy: a cancelled handler would be reported as an error
        finally:
            self._connections.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await self._target.connect()
        self._writers.add(back)
        try:
            ways = {asyncio.create_task(self._pump(*way)) for way in ((reader, back), (there, writer))}
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._writers.discard(back)
            back.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while chunk := await source.read(_CHUNK):
            await self._flows.wait()
            sink.write(chunk)
            await sink.drain()
        await self._flows.wait()
