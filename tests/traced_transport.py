"""A service in this process, reached as if over a network: a request is reported before it goes out."""

from typing import Any

import httpx


class TracedTransport(httpx.ASGITransport):
    """As httpcore's connections, which the journal of calls depends on."""

    def __init__(self, asgi: Any) -> None:
        super().__init__(asgi)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        trace = request.extensions.get("trace")
        if trace is not None:
            await trace("http11.send_request_headers.started", {})
        return await super().handle_async_request(request)
