"""A transport that reaches the named servers only, whatever a document, a redirect or a bug asks for."""

from collections.abc import Collection

import httpx

from app.apis.address import service


class BoundedTransport(httpx.AsyncBaseTransport):
    """Sends requests to the services of these URLs by another transport, and no others."""

    def __init__(self, transport: httpx.AsyncBaseTransport, servers: Collection[str]) -> None:
        self._transport = transport
        self._services = frozenset(map(service, servers))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if service(str(request.url)) not in self._services:
            raise httpx.ConnectError(
                f"a trial may not reach {request.url.host}: it is no staging server", request=request
            )
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()
