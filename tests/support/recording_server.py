"""A server that records the bytes of each request, and answers by method and target."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from tests.support.raw_server import http_answer


class Received(NamedTuple):
    line: str  # method and target
    headers: dict[str, str]  # by lower-case name
    body: bytes


class RecordingServer:
    """`answers` are whole responses by "METHOD /target"; any other request gets the empty object."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        self.answers = answers
        self.received: list[Received] = []
        self.url = ""

    @property
    def lines(self) -> list[str]:
        return [each.line for each in self.received]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip("\r\n").split("\r\n")
            pairs = (each.partition(":") for each in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            line = first.rpartition(" ")[0]
            self.received.append(Received(line, headers, body))
            writer.write(self.answers.get(line, http_answer(b"{}", "Content-Type: application/json")))
            await writer.drain()
        writer.close()


@asynccontextmanager
async def recording_server(answers: Mapping[str, bytes] | None = None) -> AsyncIterator[RecordingServer]:
    recorder = RecordingServer(answers or {})
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", 0)
    async with server:
        recorder.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield recorder
