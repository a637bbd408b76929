"""A web server of fixed bytes, for answers that no honest server gives."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


def http_answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole HTTP/1.1 response."""
    lines = [f"HTTP/1.1 {status}", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def gzipped(body: bytes, times: int) -> bytes:
    for _ in range(times):
        body = gzip.compress(body, mtime=0)
    return body


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Answers every request with the same bytes. Yields the URL."""

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        with suppress(ConnectionError):  # the client has read enough
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
