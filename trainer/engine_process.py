"""A model server of one's own, for as long as it is needed."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import torch

from app.errors import EngineError

_SECONDS = 120.0


@asynccontextmanager
async def engine_process(model: Path, device: torch.device) -> AsyncIterator[str]:
    """The URL of an embedded model server in a process of its own. Raises EngineError if it does not come up."""
    port = _free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.engine.embedded", "--model", str(model), "--port", str(port)),
        *("--device", device.type, "--embeddings", "none"),
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await _until_healthy(url, process)
        yield url
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
        await process.wait()


async def _until_healthy(url: str, process: asyncio.subprocess.Process) -> None:
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        for _ in range(int(_SECONDS / 0.2)):
            if process.returncode is not None:
                raise EngineError(f"the model server ended with code {process.returncode} before it was ready")
            if await _healthy(client, url):
                return
            await asyncio.sleep(0.2)
    raise EngineError(f"the model server is not ready after {_SECONDS:g} seconds")


async def _healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).is_success
    except httpx.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
