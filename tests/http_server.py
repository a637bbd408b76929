"""Serves the application on a real socket, which event streams need to arrive piece by piece."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn

from tests.api_app import ApiApp


@asynccontextmanager
async def served(api: ApiApp) -> AsyncIterator[httpx.AsyncClient]:
    config = uvicorn.Config(api.app, port=0, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # connections queue until the server accepts
        running = asyncio.create_task(server.serve([listening]))
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=url, headers=api.client.headers) as client:
            yield client
        server.should_exit = True
        await running
