"""Run an embedded model server of the trainer's own in a child process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from app.errors import EngineError
from app.parent_death import end_with_parent
from app.python_process import python_module

_TIMEOUT = 120.0


@asynccontextmanager
async def engine_process(model: Path, device: str) -> AsyncIterator[str]:
    """Yield its URL. Raises EngineError if it does not start."""
    process = await asyncio.create_subprocess_exec(
        *python_module("app.model_server", "--model", str(model), "--port", "0"),
        *("--device", device, "--embeddings", "none"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        yield await _address(process)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Parse the line that the server prints once it accepts connections: `serving MODEL on URL (DEVICE)`."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_TIMEOUT):
            line = (await process.stdout.readline()).decode()
    except TimeoutError as error:
        raise EngineError(f"the model server is not ready after {_TIMEOUT:g} seconds") from error
    if not line.startswith("serving"):
        raise EngineError(f"the model server ended with code {await process.wait()} before it was ready")
    return line.rpartition(" on ")[2].split()[0]
