"""Measures how long an event loop is held up."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def longest_stall() -> AsyncIterator[list[float]]:
    """The longest time, in seconds, during which this process kept its event loop from running anything else.

    At most its processor time, threads included: another process that takes the processor is not its fault.
    """
    worst = [0.0]

    async def watch() -> None:
        while True:
            before, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.001)
            passed = time.perf_counter() - before - 0.001
            worst[0] = max(worst[0], min(passed, time.process_time() - used))

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    yield worst
    watching.cancel()
