"""Serves the application on a socket, within the limits of the settings."""

import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from app.api.http_protocol import ConnectionCounter, ConnectionLimits, LimitedHttpProtocol
from app.setting_lists import networks_in
from app.settings import Settings

_SHUTDOWN_SECONDS = 3  # for open event streams to end
_IDLE_SECONDS = 125  # longer than proxies keep connections: one that closes first answers a request with a reset
_OTHER_FILES = 256  # of the process, besides connections


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


def server_options(settings: Settings) -> dict[str, Any]:
    """The arguments of `uvicorn.run`, except the application."""
    limits = ConnectionLimits(
        header_seconds=settings.header_timeout_seconds,
        body_seconds=settings.body_timeout_seconds,
        connections=_allow_files(settings.max_connections),
        connections_per_address=settings.max_connections_per_address,
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
