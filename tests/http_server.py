"""Serves the application on a real socket, which event streams need to arrive piece by piece."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import uvicorn

from app.api.http_server import server_options
from app.settings import Settings
from tests.api_app import ApiApp


@asynccontextmanager
async def served(api: ApiApp, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """With the options of `sage serve`, by these settings."""
    options = server_options(msgspec.convert({**settings, "log_level": "warning"}, Settings))
    options |= {"lifespan": "off", "timeout_graceful_shutdown": 1}
    config = uvicorn.Config(api.app, **options)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # connections queue until the server accepts
        running = asyncio.create_task(server.serve([listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        try:
            async with httpx.AsyncClient(base_url=url, headers=api.client.headers) as client:
                yield client
        finally:
            server.should_exit = True
            await running
