"""The wall clock of a run of code, which stands still while a host call waits for a time that an API named."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_running: ContextVar[asyncio.Timeout | None] = ContextVar("run_clock", default=None)


@contextmanager
def running(clock: asyncio.Timeout) -> Iterator[None]:
    """Let the host calls made within stop the clock."""
    token = _running.set(clock)
    try:
        yield
    finally:
        _running.reset(token)


@contextmanager
def stopped() -> Iterator[None]:
    """The run has as much time left afterwards as before. Does nothing outside a run."""
    clock = _running.get()
    end = None if clock is None or clock.expired() else clock.when()
    if clock is None or end is None:
        yield
        return
    loop = asyncio.get_running_loop()
    left = end - loop.time()
    clock.reschedule(None)
    try:
        yield
    finally:
        clock.reschedule(loop.time() + left)
