"""A live API whose answers are more than JSON: files, events, pages, headers, and requests to come back later."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from time import time
from typing import Annotated, Any

import httpx
from litestar import Litestar, Request, Response, get, post, put
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import parse_document
from app.base.values import Json
from tests.support.listening_app import listening_app

PHOTO = bytes(range(256)) * 4
_EVENTS = b'data: {"n": 1}\r\n\r\n: still here\r\nevent: end\r\nid: 7\r\ndata: so\r\ndata: long\r\n\r\n'


@get("/photo")
async def photo() -> Response[bytes]:
    return Response(PHOTO, media_type="image/png")


@get("/feed")
async def feed() -> Response[bytes]:
    return Response('<?xml version="1.0" encoding="iso-8859-1"?><a>é</a>'.encode("latin-1"), media_type="text/xml")


@get("/events")
async def events() -> Response[bytes]:
    return Response(_EVENTS, media_type="text/event-stream")


@get("/endless/{kind:str}")
async def endless(kind: FromPath[str]) -> Stream:
    """Two events, and then silence, too much or a broken connection."""

    async def parts() -> AsyncIterator[bytes]:
        yield _EVENTS + b"data: half"
        if kind == "silent":
            await asyncio.sleep(60)
        if kind == "broken":
            raise OSError("the disk is gone")
        while True:
            yield b": still here\n" * 10_000
            await asyncio.sleep(0)  # to a client that is gone, writing takes no time: nothing could end the loop

    return Stream(parts(), media_type="text/event-stream")


@get("/count")
async def count() -> Response[int]:
    headers = {"X-Total-Count": "3", "ETag": '"v1"', "Set-Cookie": "session=s3cr3t", "X-Auth-Token": "s3cr3t"}
    return Response(3, headers=headers)


@put("/raw")
async def put_raw(request: Request[Any, Any, Any]) -> dict[str, str | None]:
    body = await request.body()
    return {"sha256": hashlib.sha256(body).hexdigest(), "type": request.headers.get("content-type")}


@post("/uploads", status_code=200)
async def upload(request: Request[Any, Any, Any]) -> list[list[Json]]:
    form = await request.form()
    given = [(name, each) for name, each in form.multi_items()]
    return [
        [name, each if isinstance(each, str) else [each.filename, hashlib.sha256(await each.read()).hexdigest()]]
        for name, each in given
    ]


def _rows(start: int, size: int) -> list[int]:
    return list(range(start, min(start + size, 7)))


@get("/linked")
async def linked(
    request: Request[Any, Any, Any], start: Annotated[int, QueryParameter(name="from_row")] = 0
) -> Response[list[int]]:
    more = start + 3 < 7
    target = f"http://{request.headers['host']}/other/path?from_row={start + 3}&key=k"
    header = f'<{target}>; rel="next", </linked>; rel="first"' if more else '</linked>; rel="first"'
    return Response(_rows(start, 3), headers={"Link": header})


@get("/elsewhere")
async def elsewhere() -> Response[list[int]]:
    return Response([1], headers={"Link": '<http://evil.test/elsewhere?page=2>; rel="next"'})


@get("/cursors")
async def cursors(cursor: FromQuery[str | None] = None) -> dict[str, Json]:
    start = int(cursor or 0)
    token = str(start + 3) if start + 3 < 7 else ""
    return {"items": _rows(start, 3), "response_metadata": {"next_cursor": token}}


@get("/offsets")
async def offsets(offset: FromQuery[int] = 0, limit: FromQuery[int] = 3) -> dict[str, Json]:
    return {"rows": _rows(offset, limit), "total": 7}


@get("/numbered")
async def numbered(page: FromQuery[int] = 1, per_page: FromQuery[int] = 3) -> list[int]:
    return _rows((page - 1) * per_page, per_page)


class VariedService:
    """The service. `hits` counts the requests by path; `busy` answers are given before `/busy` answers."""

    def __init__(self, busy: int = 0, wait: str = "0") -> None:
        self.hits: Counter[str] = Counter()
        self.busy = busy
        self.wait = wait
        routes: list[Any] = [
            photo,
            feed,
            events,
            endless,
            count,
            put_raw,
            upload,
            linked,
            elsewhere,
            cursors,
            offsets,
            numbered,
        ]
        self.asgi = Litestar(
            [*routes, *self._busy_routes()],
            before_request=self._count,
            openapi_config=None,
            logging_config=None,
        )

    def _count(self, request: Request[Any, Any, Any]) -> None:
        self.hits[request.url.path] += 1

    def _busy_routes(self) -> list[Any]:
        def answer() -> Response[Json]:
            self.busy -= 1
            if self.busy < 0:
                return Response({"ok": True}, status_code=200)
            wait = formatdate(time() + 3600) if self.wait == "date" else self.wait
            return Response({"detail": "slow down"}, status_code=429, headers={"Retry-After": wait})

        @get("/busy")
        async def read() -> Response[Json]:
            return answer()

        @post("/busy")
        async def write() -> Response[Json]:
            return answer()

        @get("/refused/{status:int}")
        async def refused(status: FromPath[int]) -> Response[Json]:
            return Response({"code": "E7", "message": "no"}, status_code=status, headers={"X-Request-Id": "r-1"})

        return [read, write, refused]

    @asynccontextmanager
    async def gateway(self, **rules: Any) -> AsyncIterator[Gateway]:
        """A gateway to the service on a socket."""
        async with (
            listening_app(self.asgi, lifespan="off") as url,
            open_client(allow_private_hosts=True) as client,
        ):
            yield self.to(url, client, **rules)

    def to(self, url: str, client: httpx.AsyncClient, **rules: Any) -> Gateway:
        return Gateway(Catalog({"varied": varied_app(url)}), client, **rules)


def varied_app(server: str) -> App:
    integer, text, file = {"type": "integer"}, {"type": "string"}, {"type": "string", "format": "binary"}

    def query(**schemas: Json) -> dict[str, Json]:
        return {"parameters": [{"name": name, "in": "query", "schema": each} for name, each in schemas.items()]}

    def operation(name: str, answer: str = "application/json", **more: Json) -> dict[str, Json]:
        schema = file if answer == "image/png" else {}
        return {"operationId": name, "responses": {"200": {"content": {answer: {"schema": schema}}}}, **more}

    parts = {"title": text, "file": file, "more": {"type": "array", "items": {"contentMediaType": "image/png"}}}
    form = {"content": {"multipart/form-data": {"schema": {"type": "object", "properties": parts}}}}
    raw = {"required": True, "content": {"application/octet-stream": {"schema": file}}}
    status = [{"name": "status", "in": "path", "required": True, "schema": integer}]
    paths: dict[str, Json] = {
        "/photo": {"get": operation("photo", "image/png")},
        "/feed": {"get": operation("feed", "text/xml")},
        "/events": {"get": operation("events", "text/event-stream")},
        "/endless/{kind}": {"get": operation("endless", "text/event-stream")},
        "/count": {"get": operation("count")},
        "/raw": {"put": operation("put_raw", requestBody=raw)},
        "/uploads": {"post": operation("upload", requestBody=form)},
        "/linked": {"get": operation("linked", **query(from_row=integer))},
        "/elsewhere": {"get": operation("elsewhere", **query(page=integer))},
        "/cursors": {"get": operation("cursors", **query(cursor=text))},
        "/offsets": {"get": operation("offsets", **query(offset=integer, limit=integer))},
        "/numbered": {"get": operation("numbered", **query(page=integer, per_page=integer))},
        "/busy": {"get": operation("read_busy"), "post": operation("write_busy")},
        "/refused/{status}": {"get": operation("refused", parameters=status)},
    }
    return parse_document("varied", {"openapi": "3.1.0", "paths": paths, "servers": [{"url": server}]})
