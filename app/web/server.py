"""Serves the application on a socket, within limits on how slowly and how often clients may connect; and logs
one line per request.

uvicorn waits for a request without a limit of time, and an application sees a request only once its headers are
complete, so the limits are here. They end with the request: a response may take its time, as event streams do.
"""

import asyncio
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address
from types import FrameType
from typing import Any, cast
from uuid import uuid4

import msgspec
import structlog
import uvicorn
from httptools import HttpParserError
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.base.settings import Settings, networks_in
from app.web.problem import MEDIA_TYPE, answer, error_name

_SHUTDOWN_SECONDS = 3  # for open event streams to end
_IDLE_SECONDS = 125  # longer than proxies keep connections: one that closes first answers a request with a reset
_OTHER_FILES = 256  # of the process, besides connections

log = structlog.get_logger(__name__)

_VERSIONS = ("1.0", "1.1")  # the parser lets 0.9 and 2.0 pass too
_MAX_HEADER_BYTES = 64 << 10
_BODY_RATE = 5_000  # bytes per second that extend the time for a body
_LINGER_SECONDS = 2.0  # for the rest of a body that nobody reads, so that the client can read the response
_STUCK_SECONDS = 60.0  # for which a client may leave a response unread once the buffers are full
_ID_HEADER = "X-Request-ID"
_VALID_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNLOGGED = {"/healthz", "/livez", "/readyz", "/metrics"}  # polled every few seconds


class Shutdown:
    """Whether this process was told to shut down."""

    begun = False


def serve(open_app: Callable[[Shutdown], Any], settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM. `open_app` makes the application."""
    shutdown = Shutdown()
    config = uvicorn.Config(partial(open_app, shutdown), factory=True, **server_options(settings))
    config.load_app()
    server = _Server(config, shutdown, settings.shutdown_delay_seconds)
    with suppress(KeyboardInterrupt):  # raised again once it has stopped
        server.run()
    if not server.started:
        sys.exit(STARTUP_FAILURE)


class _Server(uvicorn.Server):
    """After the first SIGINT or SIGTERM, serves on for some seconds, in which readiness is false."""

    def __init__(self, config: uvicorn.Config, shutdown: Shutdown, delay: float) -> None:
        super().__init__(config)
        self._shutdown, self._delay, self._until = shutdown, delay, 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._shutdown.begun or not self._delay:
            self._shutdown.begun = True
            super().handle_exit(sig, frame)
            return
        self._shutdown.begun = True
        self._until = time.monotonic() + self._delay

    async def on_tick(self, counter: int) -> bool:
        if self._until and time.monotonic() >= self._until:
            self.should_exit = True
        return await super().on_tick(counter)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one server process."""

    header_seconds: float = 10.0  # in which the headers of a request must arrive
    body_seconds: float = 20.0  # for its body, and a second more for each `_BODY_RATE` bytes
    connections: int = 4_000
    connections_per_address: int = 1_000
    proxies: tuple[IPv4Network | IPv6Network, ...] = ()  # may have any number of them


def server_options(settings: Settings, limits: ConnectionLimits | None = None) -> dict[str, Any]:
    """The arguments of `uvicorn.run`, except the application."""
    limits = limits or ConnectionLimits()
    limits = msgspec.structs.replace(
        limits,
        connections=_allow_files(limits.connections),
        proxies=tuple(networks_in(settings.trusted_proxies)),
    )
    return {
        "host": settings.host,
        "port": settings.port,
        "http": cast("Any", partial(LimitedHttpProtocol, ConnectionCounter(limits))),
        "ws": "none",
        "log_level": settings.log_level,
        "access_log": False,
        "proxy_headers": bool(settings.trusted_proxies),
        "forwarded_allow_ips": settings.trusted_proxies,
        "timeout_graceful_shutdown": _SHUTDOWN_SECONDS,
        "timeout_keep_alive": _IDLE_SECONDS,
    }


def _allow_files(connections: int) -> int:
    """Have the system allow so many connections. Returns how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, unlimited = connections + _OTHER_FILES, resource.RLIM_INFINITY
    if soft != unlimited and soft < needed:
        soft = needed if hard == unlimited else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == unlimited else min(connections, soft - _OTHER_FILES)


class ConnectionCounter:
    """Counts the open connections of a process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count a connection. False, and it is not counted: there are too many."""
        full = self._open.total() >= self.limits.connections
        if full or (self._open[address] >= self.limits.connections_per_address and not self._is_proxy(address)):
            return False
        self._open[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _is_proxy(self, address: str) -> bool:
        try:
            return any(ip_address(address) in network for network in self.limits.proxies)
        except ValueError:  # of a Unix socket
            return False


class _Phase(Enum):
    """What of a request is being received."""

    HEADERS = "headers"
    BODY = "body"
    NOTHING = "nothing"


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection. The server calls it with the parameters of uvicorn's class, after the first."""

    def __init__(self, counter: ConnectionCounter, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._counter = counter
        self._limits = counter.limits
        self._address: str | None = None  # once it is counted
        self._phase = _Phase.NOTHING
        self._since = 0.0  # the phase began, on the loop's clock
        self._bytes = 0  # received in this phase, since the last content
        self._content = 0  # bytes of the body
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if not self._counter.enter(address):
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", "retry-after: 1\r\n")
            transport.close()
            return
        self._address = address
        self._begin(_Phase.HEADERS)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None:
            self._counter.leave(self._address)
        self._begin(_Phase.NOTHING)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._refused:
            return
        if self._phase is _Phase.NOTHING and (self.cycle is None or self.cycle.response_complete):
            self._begin(_Phase.HEADERS)  # also for bytes before a request that begin none, such as empty lines
        self._bytes += len(data)
        super().data_received(data)
        if (
            not (self.transport.is_closing() or self._refused)
            and self._phase is not _Phase.NOTHING
            and self._bytes > _MAX_HEADER_BYTES
        ):
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers or trailers are too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin(_Phase.HEADERS)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is _Phase.HEADERS:  # not a trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in _VERSIONS:
            raise HttpParserError("HTTP/1.0 or HTTP/1.1 is needed")  # answered with 400, as by the parser
        super().on_headers_complete()
        self._begin(_Phase.BODY)

    def on_body(self, body: bytes) -> None:
        self._content += len(body)
        self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._begin(_Phase.NOTHING)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is _Phase.BODY and self.cycle.response_complete:
            self._wait(_LINGER_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Called for what the parser refuses."""
        self._refuse(HTTPStatus.BAD_REQUEST, f"{msg} It is malformed, or its address is too long")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(_STUCK_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _begin(self, phase: _Phase) -> None:
        if phase is not self._phase or phase is not _Phase.HEADERS:
            self._bytes = self._content = 0
            self._since = self.loop.time()
        self._phase = phase
        if phase is _Phase.NOTHING:
            self._wait(None)
        else:
            self._wait(self._left())

    def _left(self) -> float:
        """Seconds left for the phase."""
        limits = self._limits
        seconds = limits.header_seconds
        if self._phase is _Phase.BODY:
            seconds = limits.body_seconds + self._content / _BODY_RATE
        return self._since + seconds - self.loop.time()

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(max(0.0, seconds), self._expire)

    def _expire(self) -> None:
        if self._refused:
            self.transport.close()
            return
        answered = self.cycle is not None and self.cycle.response_complete and self._phase is _Phase.BODY
        if self.flow.read_paused and not answered:  # it is us that the request waits for
            self._since = self.loop.time()
        if (left := self._left()) > 0 and not answered:
            self._wait(left)
        elif (self._phase is _Phase.HEADERS and not self._bytes) or answered or self._is_responding():
            self.transport.close()
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the {self._phase.value} did not arrive in time")

    def _is_responding(self) -> bool:
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    def _refuse(self, status: HTTPStatus, detail: str, headers: str = "") -> None:
        """Answer and close. The connection is not in order, so it has no other use."""
        self.logger.info("%s: %s", self.client[0] if self.client else "a client", detail)
        body = msgspec.json.encode(answer(status, error_name(status), detail).content)
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n{headers}"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.write_eof()
        self._refused = True
        self._wait(_LINGER_SECONDS)  # closed with unread data, the connection would be reset, and the answer lost


def log_requests(app: ASGIApp) -> ASGIApp:
    """A middleware. A valid X-Request-ID sent by the caller is kept."""

    async def logged(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        given = Headers.from_scope(scope).get(_ID_HEADER, "")
        request_id = given if _VALID_ID.fullmatch(given) else uuid4().hex
        began = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableScopeHeaders.from_message(message)[_ID_HEADER] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await app(scope, receive, send_with_id)
            finally:
                if scope["path"] not in _UNLOGGED:
                    took = round((time.perf_counter() - began) * 1000, 1)
                    log.info("request", method=scope["method"], path=scope["path"], status=status, ms=took)

    return logged
