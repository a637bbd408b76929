"""HTTP connections whose loss is an error of httpx, at whatever moment a server resets them."""

import asyncio
import ssl
from traceback import walk_tb

import httpcore
import httpx

_MAX_PORT = 65_535
_BELOW = ("anyio", "asyncio", "httpcore", "uvloop")


class _Pool(httpcore.AsyncConnectionPool):
    """Closes every connection that leaves it: a cancelled task would close the first, which httpcore cannot shield
    from asyncio, and forget the others.
    """

    async def _close_connections(self, closing: list[httpcore.AsyncConnectionInterface]) -> None:
        if closing:
            await asyncio.shield(asyncio.gather(*(each.aclose() for each in closing)))


class HttpTransport(httpx.AsyncHTTPTransport):
    """With uvloop, a connection that is reset as soon as it is open has no socket any more, and anyio uses it."""

    def __init__(
        self,
        limits: httpx.Limits,
        tls: ssl.SSLContext | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """Without the proxies that the environment names. Every connection goes through `network`."""
        context = tls or httpx.create_ssl_context(trust_env=False)
        super().__init__(verify=context, trust_env=False)
        self._pool = _Pool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=network,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """A GET that meets a kept connection which the server has closed meanwhile is sent on another one."""
        if request.url.port is not None and request.url.port > _MAX_PORT:  # anyio raises an exception group for it
            raise httpx.ConnectError(f"{request.url.port} is no port", request=request)
        if request.method != "GET" or "trace" in request.extensions:
            return await self._send(request)
        while True:
            is_new = False

            async def trace(event: str, _info: object) -> None:
                nonlocal is_new
                is_new = is_new or event.startswith("connection.connect")

            request.extensions = {**request.extensions, "trace": trace}
            try:
                return await self._send(request)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if is_new:
                    raise

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            frames = [frame for frame, _ in walk_tb(error.__traceback__)]
            module = frames[-1].f_globals.get("__name__", "") if frames else ""
            if error.obj is not None or module.partition(".")[0] not in _BELOW:
                raise
            raise httpx.ReadError("the server reset the connection", request=request) from error
