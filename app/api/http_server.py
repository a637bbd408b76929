"""Serves the application on a socket, within the limits of the settings."""

import resource
from functools import partial
from typing import Any, cast

from app.api.http_protocol import ConnectionCounter, ConnectionLimits, LimitedHttpProtocol
from app.setting_lists import networks_in
from app.settings import Settings

_SHUTDOWN_SECONDS = 3  # for open event streams to end
_OTHER_FILES = 256  # of the process, besides connections


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
    }


def _allow_files(connections: int) -> int:
    """Have the system allow so many connections. Returns how many it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, unlimited = connections + _OTHER_FILES, resource.RLIM_INFINITY
    if soft != unlimited and soft < needed:
        soft = needed if hard == unlimited else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == unlimited else min(connections, soft - _OTHER_FILES)
