"""Stops a rollout from outside."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class SuspendedError(Exception):
    """The rollout was stopped where it can be resumed: between two turns, or at a call that needs approval.

    It has no trajectory yet.
    """


class StopSignal:
    """Cancelling stops at once and for good, suspending at the next point where nothing is lost."""

    def __init__(self, *, cancelled: bool = False) -> None:
        self.cancelled = cancelled
        self.suspended = False
        self.released = False  # the rollout has handed the task back, and writes nothing more
        self.lost = False  # another runner claimed the task, whose lease had expired
        self._lossless = False
        self._timeout: asyncio.Timeout | None = None

    def cancel(self) -> None:
        self.cancelled = True
        self._expire()

    def suspend(self) -> None:
        self.suspended = True
        if self._lossless:
            self._expire()

    def attach(self, timeout: asyncio.Timeout) -> None:
        """Set the timeout that the rollout runs under."""
        self._timeout = timeout
        if self.cancelled:
            self._expire()

    @contextmanager
    def lossless(self) -> Iterator[None]:
        """Work in this block can be repeated: a suspended rollout stops here. Raises SuspendedError."""
        self._raise_if_suspended()
        self._lossless = True
        try:
            yield
        finally:
            self._lossless = False
        self._raise_if_suspended()

    def _raise_if_suspended(self) -> None:
        if self.suspended:
            raise SuspendedError

    def _expire(self) -> None:
        if self._timeout is not None and not self._timeout.expired():
            with suppress(RuntimeError):  # the rollout has ended
                self._timeout.reschedule(asyncio.get_running_loop().time())
