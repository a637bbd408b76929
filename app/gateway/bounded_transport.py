"""A transport that reaches the named servers only, whatever a document, a redirect or a bug asks for."""

from collections.abc import Collection

import httpx

from app.apis.address import origin


class BoundedTransport(httpx.AsyncBaseTransport):
    """Sends requests to these origins by another transport, and no others."""

    def __init__(self, transport: httpx.AsyncBaseTransport, origins: Collection[str]) -> None:
        self._transport = transport
        self._origins = frozenset(origins)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if origin(str(request.url)) not in self._origins:
            raise httpx.ConnectError(
                f"a trial may not reach {request.url.host}: it is no staging server", request=request
            )
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()
