"""Serves the application on a real socket, which event streams need to arrive piece by piece."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec

from app.base.settings import Settings
from app.web.server import ConnectionLimits, server_options
from tests.support.api_app import ApiApp
from tests.support.listening_app import listening_app


@asynccontextmanager
async def served(
    api: ApiApp, limits: ConnectionLimits | None = None, **settings: object
) -> AsyncIterator[httpx.AsyncClient]:
    """With the options of `sage serve`, by these limits and settings."""
    options = server_options(msgspec.convert({**settings, "log_level": "warning"}, Settings), limits)
    options |= {"lifespan": "off", "timeout_graceful_shutdown": 1}
    async with (
        listening_app(api.app, **options) as url,
        httpx.AsyncClient(base_url=url, headers=api.client.headers, timeout=300) as client,
    ):
        yield client
