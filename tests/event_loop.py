"""Measures how long an event loop is held up."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def longest_stall() -> AsyncIterator[list[float]]:
    """The longest time, in seconds, during which the event loop ran nothing else."""
    worst = [0.0]

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            worst[0] = max(worst[0], time.perf_counter() - before - 0.001)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    yield worst
    watching.cancel()
