"""Mutual TLS: connections of their own for requests that name a certificate."""

import asyncio
import ssl
from collections.abc import Callable

import httpx

from app.apis.authentication import CERTIFICATE
from app.gateway.certificates import Certificates


class CertificateTransport(httpx.AsyncBaseTransport):
    """Sends requests that name a certificate over connections of their own, all others by the plain transport.

    A file that has changed is read again.
    """

    def __init__(
        self,
        plain: httpx.AsyncBaseTransport,
        open_transport: Callable[[ssl.SSLContext], httpx.AsyncBaseTransport],
        certificates: Certificates,
    ) -> None:
        self._plain = plain
        self._open_transport = open_transport
        self._certificates = certificates
        self._open: dict[str, tuple[int, httpx.AsyncBaseTransport]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.extensions.get(CERTIFICATE)
        if name is None:
            return await self._plain.handle_async_request(request)
        try:
            transport = await self._transport(name)
        except (OSError, ssl.SSLError) as error:
            raise httpx.ConnectError(f"the client certificate cannot be used: {error}", request=request) from error
        return await transport.handle_async_request(request)

    async def aclose(self) -> None:
        for _, each in self._open.values():
            await each.aclose()
        await self._plain.aclose()

    async def _transport(self, name: str) -> httpx.AsyncBaseTransport:
        path = self._certificates.path(name)
        changed = path.stat().st_mtime_ns
        if name not in self._open or self._open[name][0] != changed:
            context = await asyncio.to_thread(self._certificates.context, path)
            old = self._open.get(name)
            self._open[name] = changed, self._open_transport(context)
            if old is not None:
                await old[1].aclose()
        return self._open[name][1]
