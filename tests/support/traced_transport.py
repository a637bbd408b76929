"""Services in this process, reached as if over a network: a request is reported before it goes out."""

from typing import Any

import httpx


async def _report(request: httpx.Request) -> None:
    """As httpcore's connections do, which the journal of calls depends on."""
    trace = request.extensions.get("trace")
    if trace is not None:
        await trace("http11.send_request_headers.started", {})


class TracedTransport(httpx.ASGITransport):
    """To an ASGI application."""

    def __init__(self, asgi: Any) -> None:
        super().__init__(asgi)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await _report(request)
        return await super().handle_async_request(request)


class TracedAnswers(httpx.MockTransport):
    """To a function."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await _report(request)
        return await super().handle_async_request(request)
