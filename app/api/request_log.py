"""Logs one line per request, with the id that is in the response."""

import re
import time
from uuid import uuid4

import structlog
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

log = structlog.get_logger(__name__)

_HEADER = "X-Request-ID"
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNLOGGED = {"/healthz", "/livez", "/readyz", "/metrics"}  # polled every few seconds


def log_requests(app: ASGIApp) -> ASGIApp:
    """A middleware. A valid X-Request-ID sent by the caller is kept."""

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        given = Headers.from_scope(scope).get(_HEADER, "")
        request_id = given if _VALID_ID.fullmatch(given) else uuid4().hex
        began = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableScopeHeaders.from_message(message)[_HEADER] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await app(scope, receive, send_with_id)
            finally:
                if scope["path"] not in _UNLOGGED:
                    took = round((time.perf_counter() - began) * 1000, 1)
                    log.info("request", method=scope["method"], path=scope["path"], status=status, ms=took)

    return logged
