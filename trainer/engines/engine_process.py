"""A model server of one's own, for as long as it is needed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.errors import EngineError

_SECONDS = 120.0


@asynccontextmanager
async def engine_process(model: Path, device: str) -> AsyncIterator[str]:
    """The URL of an embedded model server in a process of its own. Raises EngineError if it does not come up."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "app.engine.embedded", "--model", str(model), "--port", "0"),
        *("--device", device, "--embeddings", "none"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield await _address(process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """What the server says once it takes connections: `serving MODEL on URL (DEVICE)`."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_SECONDS):
            line = (await process.stdout.readline()).decode()
    except TimeoutError as error:
        raise EngineError(f"the model server is not ready after {_SECONDS:g} seconds") from error
    if not line.startswith("serving"):
        raise EngineError(f"the model server ended with code {await process.wait()} before it was ready")
    return line.rpartition(" on ")[2].split()[0]
