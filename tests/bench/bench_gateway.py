"""Cost of a call through the gateway, in process, compared with the same call through httpx.

Run: python -m tests.bench.bench_gateway
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx

from app.apis.calls.arguments import bind
from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.base.values import Json

_CALLS = 3000
_ROUNDS = 3


async def serve(_scope: Any, _receive: Any, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> None:
    """A minimal ASGI app."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'[{"id":1,"sender":"iris","folder":"travel"}]'})


def catalog() -> Catalog:
    def argument(name: str, place: str, kind: str) -> Json:
        return {"name": name, "in": place, "required": True, "schema": {"type": kind}}

    arguments = [argument("access_token", "header", "string"), argument("page", "query", "integer")]
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "http://mail.test/worlds/{world}", "variables": {"world": {"default": "demo"}}}],
        "paths": {"/mails": {"get": {"operationId": "list_mails", "parameters": arguments}}},
    }
    return Catalog({"mail": parse_document("mail", document)})


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(serve)) as client:
        apis = catalog()
        gateway = Gateway(apis, client, max_calls=1 << 40)
        operation = apis.apps["mail"].operations["list_mails"]

        async def through_gateway() -> None:
            await gateway("mail.list_mails", ["token", 2], {})

        async def through_httpx() -> None:
            url, params, headers = "http://mail.test/worlds/demo/mails", {"page": 2}, {"access_token": "token"}
            (await client.get(url, params=params, headers=headers)).json()

        async def look_up() -> None:
            await gateway("api_docs.show_signatures", ["mail"], {})

        async def check_alone() -> None:
            bind(operation, ["token", 2], {})

        for call in (through_gateway, through_httpx, look_up, check_alone):
            print(f"{call.__name__:16} {await _microseconds(call):7.1f} us CPU a call")


async def _microseconds(call: Callable[[], Awaitable[None]]) -> float:
    """The best of some rounds: the machine may be busy with other work."""
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.process_time()
        for _ in range(_CALLS):
            await call()
        best = min(best, (time.process_time() - started) / _CALLS * 1e6)
    return best


if __name__ == "__main__":
    asyncio.run(main())
