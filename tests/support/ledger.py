"""A live API for tests of the agent: a ledger that records what is written to it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import msgspec
from litestar import Litestar, get, post
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.params import Body, FromQuery

from app.apis.calls.gateway import Gateway
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import parse_document
from app.base.values import Json
from tests.support.listening_app import listening_app
from tests.support.traced_transport import TracedTransport


class Entry(msgspec.Struct, frozen=True):
    text: str
    amount: int = 1


class Ledger:
    """`entries` were written, in order, the last one at `written_at` on the monotonic clock; `reads` counts the
    look-ups; `pause` delays answers, in seconds, and they come only while `answers` is set. With
    `busy_seconds` the first look-up is to come back after them.
    """

    def __init__(self, pause: float = 0.0) -> None:
        self.entries: list[Entry] = []
        self.written_at = 0.0
        self.reads = 0
        self.pause = pause
        self.busy_seconds = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.asgi = Litestar(
            self._routes(), openapi_config=OpenAPIConfig(title="Ledger", version="1"), logging_config=None
        )

    def _routes(self) -> list[Any]:
        @post("/entries", operation_id="add_entry", summary="write one entry")
        async def add_entry(data: Annotated[Entry, Body()]) -> dict[str, int]:
            self.entries.append(data)
            self.written_at = time.monotonic()
            number = len(self.entries)
            await self._wait()
            return {"id": number}

        @get("/entries", operation_id="list_entries", summary="the entries, page by page, from 0")
        async def list_entries(page: FromQuery[int] = 0) -> list[Entry]:
            self.reads += 1
            if self.busy_seconds and self.reads == 1:
                wait = {"Retry-After": str(self.busy_seconds)}
                raise HTTPException("come back later", status_code=429, headers=wait)
            await self._wait()
            return self.entries[page * 5 : page * 5 + 5]

        return [add_entry, list_entries]

    async def _wait(self) -> None:
        await asyncio.sleep(self.pause)
        await self.answers.wait()

    def document(self, server: str) -> dict[str, Json]:
        return {**self.asgi.openapi_schema.to_schema(), "servers": [{"url": server}]}

    def app(self, server: str) -> App:
        return parse_document("ledger", self.document(server))

    def client(self) -> httpx.AsyncClient:
        """A client of the API in this process."""
        return httpx.AsyncClient(transport=TracedTransport(self.asgi))

    def gateway(self, client: httpx.AsyncClient, **rules: Any) -> Gateway:
        return Gateway(Catalog({"ledger": self.app("http://ledger.test")}), client, **rules)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a socket; yields the URL."""
        async with listening_app(self.asgi, lifespan="off") as url:
            yield url
