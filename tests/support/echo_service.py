"""An HTTP service that echoes requests, for tests of what is sent over the wire."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from litestar import Litestar, MediaType, Request, Response, get, post, route
from litestar.params import FromPath

from app.apis.calls.gateway import Gateway
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import parse_document
from app.base.errors import HostError
from app.base.values import Json
from tests.support.listening_app import listening_app
from tests.support.traced_transport import TracedTransport


@route("/echo/{rest:path}", http_method=("GET", "POST", "PUT"), media_type=MediaType.JSON, status_code=200)
async def echo(request: Request[Any, Any, Any], rest: FromPath[str]) -> Json:
    raw = request.scope["raw_path"].decode()
    return {
        "method": request.method,
        "path": raw.partition("/echo")[2],
        "query": request.scope["query_string"].decode(),
        "headers": dict(request.headers),
        "body": (await request.body()).decode(),
        "rest": rest,
    }


@post("/fail/{status:int}")
async def fail(request: Request[Any, Any, Any], status: FromPath[int]) -> Response[Json]:
    sent = request.headers.get("authorization", "")
    return Response({"message": "no such mail", "sent": sent}, status_code=status)


@post("/hidden")
async def hidden(request: Request[Any, Any, Any]) -> Json:
    sent = request.headers.get("authorization", "")
    return {"deep": [{sent: f"sent {sent}", "bare": sent.removeprefix("Bearer ")}]}


@get("/answers/{kind:str}")
async def answers(kind: FromPath[str]) -> Response[Any]:
    if kind == "nothing":
        return Response(None, status_code=204)
    if kind == "slow":
        await asyncio.sleep(0.6)
    content, media_type = {
        "text": ("plain words", "text/plain"),
        "image": (b"\x89PNG\xff\x00", "image/png"),
        "broken": (b"{not json", "application/json"),
        "large": (b"[" + b"1," * (2 << 20) + b"1]", "application/json"),
        "long": (b"x" * 9000, "text/html"),
        "problem": (b'{"title": "odd"}', "application/problem+json"),
        "slow": (b"late", "text/plain"),
    }[kind]
    return Response(content, media_type=media_type, status_code=500 if kind == "long" else 200)


@route("/redirect", http_method=("GET", "POST"), status_code=307)
async def redirect(request: Request[Any, Any, Any]) -> Response[None]:
    target = request.query_params["to"]
    status = int(request.query_params.get("status", "307"))
    return Response(None, status_code=status, headers={"Location": target, "Set-Cookie": "seen=1; Path=/"})


@get("/loop", status_code=302)
async def loop() -> Response[None]:
    return Response(None, status_code=302, headers={"Location": "/loop"})


class Echo:
    """The service. `hits` counts requests."""

    def __init__(self) -> None:
        self.hits = 0
        self.asgi = Litestar(
            [echo, fail, hidden, answers, redirect, loop],
            before_request=self._count,
            openapi_config=None,
            logging_config=None,
        )

    def _count(self, _request: Request[Any, Any, Any]) -> None:
        self.hits += 1

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a socket; yields the URL."""
        async with listening_app(self.asgi, lifespan="off") as url:
            yield url


class EchoSetup:
    """The service, a client and gateways to it."""

    def __init__(self, service: Echo, server: str, client: httpx.AsyncClient) -> None:
        self.service = service
        self.client = client
        self.server = server
        self.catalog = Catalog({"echo": echo_app(server)})

    def gateway(self, **rules: Any) -> Gateway:
        return Gateway(self.catalog, self.client, **rules)


@asynccontextmanager
async def open_echo(transport: str) -> AsyncIterator[EchoSetup]:
    """Over a "socket", or in process ("asgi")."""
    service = Echo()
    if transport == "asgi":
        async with httpx.AsyncClient(transport=TracedTransport(service.asgi)) as client:
            yield EchoSetup(service, "http://echo.test", client)
    else:
        async with service.listening() as server, httpx.AsyncClient(timeout=300, trust_env=False) as client:
            yield EchoSetup(service, server, client)


async def raised(gateway: Gateway, api: str, *args: Json, **kwargs: Json) -> HostError:
    """The error that the agent's code would see."""
    with pytest.raises(HostError) as caught:
        await gateway(api, list(args), kwargs)
    return caught.value


def echo_app(server: str) -> App:
    """An app with every place and style of an argument, and every kind of answer."""
    text, number = {"type": "string"}, {"type": "integer"}
    many = {"type": "array", "items": text}
    options = {"type": "object", "additionalProperties": text}

    def argument(name: str, place: str, schema: Json, **more: Json) -> Json:
        return {"name": name, "in": place, "schema": schema, **more}

    def operation(name: str, *parameters: Json, body: Json = None) -> Json:
        node: dict[str, Json] = {"operationId": name, "summary": name, "parameters": list(parameters)}
        return {**node, "requestBody": body} if body else node

    fields = {"type": "object", "required": ["title"], "properties": {"title": text, "tags": many, "size": number}}
    kind, status = argument("kind", "path", text), argument("status", "path", number)
    to = argument("to", "query", text)
    code = argument("status", "query", number)
    paths = {
        "/echo/{id}/{part}": {
            "get": operation(
                "showAll",
                argument("id", "path", {"type": ["integer", "array"]}),
                argument("part", "path", text),
                argument("tags", "query", many),
                argument("ids", "query", many, explode=False),
                argument("piped", "query", many, style="pipeDelimited", explode=False),
                argument("filter", "query", options, style="deepObject"),
                argument("sort", "query", options),
                argument("flag", "query", {"type": "boolean"}),
                argument("access_token", "header", text),
                argument("X-Ids", "header", many),
                argument("session", "cookie", text),
            )
        },
        "/echo/items": {
            "post": operation(
                "addItem", body={"required": True, "content": {"application/json": {"schema": fields}}}
            )
        },
        "/echo/forms": {
            "post": operation("sendForm", body=_body("application/x-www-form-urlencoded", fields)),
            "put": operation("sendParts", body=_body("multipart/form-data", fields)),
        },
        "/echo/lists": {"post": operation("sendList", body=_body("application/json", many))},
        "/echo/notes": {"put": operation("sendText", body=_body("text/plain", text))},
        "/fail/{status}": {"post": operation("fail", status)},
        "/hidden": {"post": operation("hidden")},
        "/answers/{kind}": {"get": operation("answer", kind)},
        "/redirect": {"get": operation("goto", to, code), "post": operation("sendTo", to, code)},
    }
    document = {"openapi": "3.1.0", "info": {"title": "Echo"}, "servers": [{"url": server}], "paths": paths}
    return parse_document("echo", document)


def _body(media_type: str, schema: Json) -> Json:
    return {"required": True, "content": {media_type: {"schema": schema}}}
