"""HTTP connections whose loss is an error of httpx, at whatever moment a server resets them."""

import ssl
from traceback import walk_tb

import httpx

_BELOW = ("anyio", "asyncio", "httpcore", "uvloop")


class HttpTransport(httpx.AsyncHTTPTransport):
    """With uvloop, a connection that is reset as soon as it is open has no socket any more, and anyio uses it."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            frames = [frame for frame, _ in walk_tb(error.__traceback__)]
            module = frames[-1].f_globals.get("__name__", "") if frames else ""
            if error.obj is not None or module.partition(".")[0] not in _BELOW:
                raise
            raise httpx.ReadError("the server reset the connection", request=request) from error


def http_transport(limits: httpx.Limits, tls: ssl.SSLContext | bool = True) -> HttpTransport:
    """Without the proxies that the environment names."""
    return HttpTransport(verify=tls, limits=limits, trust_env=False)
