"""Measures how long an event loop is held up."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.tasks.runner import starved_seconds


@asynccontextmanager
async def longest_stall() -> AsyncIterator[list[float]]:
    """The longest time, in seconds, during which this process kept its event loop from running anything else.

    At most its processor time, threads included, and without the time for which the loop was ready to run: another
    process that takes the processor is not its fault.
    """
    worst, thread = [0.0], threading.get_native_id()

    async def watch() -> None:
        while True:
            before, used, starved = time.perf_counter(), time.process_time(), starved_seconds(thread)
            await asyncio.sleep(0.001)
            passed = time.perf_counter() - before - 0.001 - (starved_seconds(thread) - starved)
            worst[0] = max(worst[0], min(passed, time.process_time() - used))

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    yield worst
    watching.cancel()
