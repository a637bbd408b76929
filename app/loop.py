"""A background loop that only its owner can stop: every error is logged, and the loop continues."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import structlog

from app.errors import first_line

log = structlog.get_logger(__name__)

Tick = Callable[[], Awaitable[float | None]]
"""One round. Returns the seconds until the next one; None means the loop's own pace, 0 at once."""


class Loop:
    """Calls `tick` every `every` seconds, and at once after `wake`. Use it as an async context manager.

    A call of `wake` during a round triggers another. `expected` are errors that pass by themselves, such as
    an unavailable database: they are logged as warnings, all others as defects with their traceback.
    """

    def __init__(
        self, name: str, tick: Tick, every: float, *, expected: tuple[type[BaseException], ...] = ()
    ) -> None:
        self.name = name
        self.failures = 0  # rounds in a row that raised
        self._tick = tick
        self._every = every
        self._expected = expected
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """For owners that are context managers themselves, and call `stop` at their end."""
        self._running = asyncio.create_task(self._run(), name=self.name)

    def wake(self) -> None:
        """Start the next round now. Safe to call before the loop runs and after it was stopped."""
        self._woken.set()

    async def stop(self) -> None:
        """Cancel the round under way, and wait until it has ended. Safe to call twice."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
            self._running = None

    async def _run(self) -> None:
        while True:
            self._woken.clear()  # before the round: a wake during the round triggers another
            pause = await self._round()
            with suppress(
                TimeoutError
            ):  # not wait_for: Python 3.11's forgets a cancellation that meets the result
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def _round(self) -> float:
        try:
            pause = await self._tick()
        except self._expected as error:
            self.failures += 1
            log.warning(f"{self.name}: this round failed", failures=self.failures, cause=first_line(error))
        except Exception:  # the last resort: otherwise this work would silently never be done again
            self.failures += 1
            log.exception(f"{self.name}: this round failed", failures=self.failures)
        else:
            self.failures = 0
            return self._every if pause is None else pause
        return self._every
