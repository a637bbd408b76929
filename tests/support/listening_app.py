"""An ASGI app on a socket of this machine, in the event loop of the test."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn


@asynccontextmanager
async def listening_app(app: Any, **options: Any) -> AsyncIterator[str]:
    """Yields its URL. `options` are uvicorn's.

    Idle connections are kept for as long as a test may take: uvicorn closes them after 5 s, and a caller that a
    busy machine holds up for that long sends its next request into one that is being closed.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:  # connections queue until the server accepts
        # Connections inherit it. asyncio sets it only where the socket names its protocol: without it, each answer
        # on a kept connection waits 40 ms for the client's system to confirm its headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        settings: dict[str, Any] = {
            "ws": "none",
            "log_level": "critical",
            "timeout_keep_alive": 900,
            "timeout_graceful_shutdown": 1,
            **options,
        }
        server = uvicorn.Server(uvicorn.Config(app, **settings))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
