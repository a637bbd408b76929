"""The soft CPU limit: raises in the agent's code, which may clean up and keeps its state."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class CpuLimit:
    """A timer of the process's CPU time. Never raises in the middle of a message to the host."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._armed = False
        self._masked = False
        self._pending = False
        self.raised: TimeoutError | None = None
        signal.signal(signal.SIGVTALRM, self._on_timer)

    def arm(self, seconds: float | None = None) -> None:
        """Restart the timer. It raises repeatedly, for code that catches everything."""
        seconds = seconds or self.seconds
        self.raised, self._pending, self._armed = None, False, True
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds / 4)

    def spend(self, seconds: float) -> None:
        """Take time off what is left, since another process used it for this one."""
        left, interval = signal.getitimer(signal.ITIMER_VIRTUAL)
        if self._armed:
            signal.setitimer(signal.ITIMER_VIRTUAL, max(left - seconds, 0.001), interval)

    def disarm(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the exception to the end of this block."""
        outer, self._masked = self._masked, True
        try:
            yield
        finally:
            self._masked = outer
        if self._pending and not outer:
            self._raise()

    def _on_timer(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._armed:
            return
        if self._masked:
            self._pending = True
        else:
            self._raise()

    def _raise(self) -> None:
        self._pending = False
        if self._armed:
            self.raised = TimeoutError(f"the code used more than {self.seconds:g} s of CPU time")
            raise self.raised
