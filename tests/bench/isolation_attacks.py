"""Tasks and API documents that try to stop the server: what the bench of isolation submits."""

import gzip
import json
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, route
from litestar.datastructures import State

_SEND = "import os\ndef raw(body):\n    os.write(3, len(body).to_bytes(4, 'big') + body)\n"
_CHANNEL = "channel = apis.api_docs.show_app_descriptions._channel\n"


class Attack(msgspec.Struct, frozen=True):
    """The code of every turn of its tasks; or, without code, a document that is registered over and over."""

    name: str
    code: str = ""
    document: dict[str, Any] | None = None


def attacks(server: str) -> list[Attack]:
    """Each of one kind. `server` is that of `hostile_services`."""
    return [
        Attack("a frame with an unclosed string of 250 KB", _SEND + 'raw(b\'["out","n","\' + b\'a,\' * 125_000)'),
        Attack(
            "a frame with a closed string of 4 MB", _SEND + "raw(b'[\"out\",\"n\",\"' + b'a' * 4_000_000 + b'\"]')"
        ),
        Attack("an answer packed twice (gzip, gzip)", "print(len(str(apis.hostile.twice())))", _document(server)),
        Attack("an answer packed once (1 GB in 1 MB)", "print(len(str(apis.hostile.once())))", _document(server)),
        Attack("an argument for ^(a+)+$", "apis.hostile.match(text='a' * 40 + '!')", _pattern(server)),
        Attack(
            "2,000 objects for uniqueItems",
            "apis.hostile.unique(items=[{'n': str(n)} for n in range(2000)])",
            _unique(server),
        ),
        Attack(
            "the description of a recursive schema",
            "for _ in range(50):\n"
            "    print(len(str(apis.api_docs.show_api_doc(app_name='hostile', api_name='recurse'))))",
            _recursive(server),
        ),
        Attack("30,000 operations of one name", document=_same_names(server)),
        Attack(
            "sessions that die at once",
            "import os\nfor _ in range(10_000):\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
            "os.kill(os.getpid(), 9)",
        ),
        Attack(
            "counts of 2**53",
            f"{_SEND}{_CHANNEL}import json\nbig = 2**53 - 1\n"
            "raw(json.dumps(['done', channel.run, 'ok', None, [['x', big, big]]]).encode())",
        ),
        Attack("code that burns CPU time", "while True:\n    pass"),
    ]


def hostile_services() -> Litestar:
    twice = gzip.compress(gzip.compress(bytes(1 << 30), 1), 9)
    once = gzip.compress(b'"' + b" " * (1 << 30) + b'"', 1)

    @route("/{name:str}", http_method=["GET", "POST"], status_code=200)
    async def answer(name: str, request: Request[Any, Any, State]) -> Response[bytes]:
        await request.body()
        packed = {"twice": (twice, "gzip, gzip"), "once": (once, "gzip")}.get(name)
        if packed is None:
            return Response(b"1", media_type="application/json")
        return Response(packed[0], media_type="application/json", headers={"content-encoding": packed[1]})

    return Litestar([answer], openapi_config=None, logging_config=None)


def _document(server: str, paths: dict[str, Any] | None = None, **components: Any) -> dict[str, Any]:
    reading = {f"/{name}": {"get": _operation(name)} for name in ("twice", "once")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hostile", "version": "1"},
        "servers": [{"url": server}],
        "paths": {**reading, **(paths or {})},
        "components": {"schemas": components},
    }


def _operation(name: str, **body: Any) -> dict[str, Any]:
    operation = {"operationId": name, "summary": name, "responses": {"200": {"description": "an answer"}}}
    if not body:
        return operation
    schema = {"type": "object", "properties": body, "required": list(body)}
    return {**operation, "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _pattern(server: str) -> dict[str, Any]:
    return _document(
        server, {"/match": {"post": _operation("match", text={"type": "string", "pattern": "^(a+)+$"})}}
    )


def _unique(server: str) -> dict[str, Any]:
    items = {"type": "array", "uniqueItems": True, "items": {"type": "object"}}
    return _document(server, {"/unique": {"post": _operation("unique", items=items)}})


def _recursive(server: str) -> dict[str, Any]:
    """Every schema has each of the others as properties."""
    names = [f"S{number}" for number in range(12)]
    properties = {f"p{number}": {"$ref": f"#/components/schemas/{name}"} for number, name in enumerate(names)}
    schemas = {name: {"type": "object", "properties": properties} for name in names}
    return _document(server, {"/recurse": {"post": _operation("recurse", **properties)}}, **schemas)


def _same_names(server: str) -> dict[str, Any]:
    document = _document(server, {f"/{number}": {"get": _operation("same")} for number in range(30_000)})
    assert len(json.dumps(document)) < 32 << 20
    return document
