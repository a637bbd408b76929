"""Headers of all answers of the console: what browsers may do with them, and how long the server took."""

import time

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with "no-referrer", forms would not tell where they come from
    "X-Content-Type-Options": "nosniff",
}


def secure_headers(app: ASGIApp) -> ASGIApp:
    """A middleware. Pages are not kept: another person may use the browser next."""

    async def secured(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                headers["Server-Timing"] = f"total;dur={(time.perf_counter() - began) * 1000:.1f}"
            await send(message)

        await app(scope, receive, send_secured)

    return secured
