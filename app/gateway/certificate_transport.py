"""Mutual TLS: connections of their own for requests that name a certificate."""

import asyncio
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from app.apis.authentication import CERTIFICATE
from app.gateway.certificates import Certificates


class CertificateTransport(httpx.AsyncBaseTransport):
    """Sends requests that name a certificate over connections of their own, all others by the plain transport.

    A file that has changed is read again; requests under way keep the connections that they have.
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
        self._open: dict[str, _Connections] = {}
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.extensions.get(CERTIFICATE)
        if name is None:
            return await self._plain.handle_async_request(request)
        try:
            connections = await self._connections(name)
        except (OSError, ssl.SSLError) as error:
            raise httpx.ConnectError(f"the client certificate cannot be used: {error}", request=request) from error
        async with AsyncExitStack() as use:
            await use.enter_async_context(connections.used())
            response = await connections.transport.handle_async_request(request)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _Answer(response.stream, use.pop_all())
            return response

    async def aclose(self) -> None:
        for each in self._open.values():
            await each.transport.aclose()
        await self._plain.aclose()

    async def _connections(self, name: str) -> "_Connections":
        path = self._certificates.path(name)
        async with self._locks[name]:
            changed = path.stat().st_mtime_ns
            old = self._open.get(name)
            if old is not None and old.changed == changed:
                return old
            context = await asyncio.to_thread(self._certificates.context, path)
            new = self._open[name] = _Connections(changed, self._open_transport(context))
            if old is not None:
                async with old.used():
                    old.retired = True
            return new


class _Connections:
    """Those that show a certificate as its file was when `changed`. They close once `retired` and unused."""

    def __init__(self, changed: int, transport: httpx.AsyncBaseTransport) -> None:
        self.changed = changed
        self.transport = transport
        self.retired = False
        self._users = 0

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """By a request, until its answer is read."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.retired and not self._users:
                await self.transport.aclose()


class _Answer(httpx.AsyncByteStream):
    """Ends the `use` of connections when it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, use: AsyncExitStack) -> None:
        self._stream = stream
        self._use = use

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        async with self._use:
            await self._stream.aclose()
