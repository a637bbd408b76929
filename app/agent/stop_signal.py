"""Ends a rollout from outside, whatever it is doing."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class SuspendedError(Exception):
    """The rollout was stopped where it can be resumed: between two turns. It has no trajectory yet."""


class StopSignal:
    """Two ways to stop: pulled means at once and for good, parked means at the next point without loss."""

    def __init__(self) -> None:
        self.cancelled = False
        self.suspended = False
        self._lossless = False
        self._clock: asyncio.Timeout | None = None

    def cancel(self) -> None:
        self.cancelled = True
        self._ring()

    def suspend(self) -> None:
        self.suspended = True
        if self._lossless:
            self._ring()

    def attach(self, clock: asyncio.Timeout) -> None:
        """The rollout hands over the clock it runs by."""
        self._clock = clock
        if self.cancelled:
            self._ring()

    @contextmanager
    def lossless(self) -> Iterator[None]:
        """What runs in here can be done again, so this is where a parked rollout stops. Raises ParkedError."""
        self._stop_if_parked()
        self._lossless = True
        try:
            yield
        finally:
            self._lossless = False
        self._stop_if_parked()

    def _stop_if_parked(self) -> None:
        if self.suspended:
            raise SuspendedError

    def _ring(self) -> None:
        if self._clock is not None and not self._clock.expired():
            self._clock.reschedule(asyncio.get_running_loop().time())
