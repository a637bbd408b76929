"""Limits on a runner process: one that is stuck ends within seconds, one that grows too large is replaced."""

import faulthandler
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from app.base.errors import SettingError
from app.base.loop import UNRESPONSIVE, Loop
from app.base.settings import Settings

_PULSE_SECONDS = 0.25  # of the event loop: so often that threads on many processors compute little meanwhile
_LOOKS = 8  # of the watchdog, within the seconds after which it bites
_MEMORY_SECONDS = 0.5  # between two looks at the memory
_FULL = 0.9  # of the limit: the process is replaced before allocations fail


class Watchdog:
    """While entered, ends the process by UNRESPONSIVE if the event loop computes or waits for `seconds` without
    a pause, and logs what it was executing.

    Time for which the host has no processor for it, or has stopped the process, does not count. A timer of the
    kernel measures what the process computes, which needs no GIL: also a regular expression cannot hold it up.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._busy = 0.0  # seconds since the last pulse, as the thread below has seen them
        self._left = threading.Event()
        self._loop = Loop("watchdog", self._pulse, _PULSE_SECONDS)

    async def __aenter__(self) -> Self:
        faulthandler.register(UNRESPONSIVE, chain=True)
        await self._pulse()
        self._loop.start()
        threading.Thread(
            target=self._watch, args=[threading.get_native_id()], name="watchdog", daemon=True
        ).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        self._left.set()
        signal.setitimer(signal.ITIMER_PROF, 0)

    async def _pulse(self) -> None:
        self._busy = 0.0
        signal.setitimer(signal.ITIMER_PROF, self._seconds)  # sends UNRESPONSIVE

    def _watch(self, thread: int) -> None:
        """End the process if the thread of the event loop waits for too long. Counts what was waited here, not
        what a clock shows: the process may have been stopped.
        """
        pause = self._seconds / _LOOKS
        before, starved = time.monotonic(), starved_seconds(thread)
        while not self._left.wait(pause):
            now, starved_now = time.monotonic(), starved_seconds(thread)
            self._busy = max(0.0, self._busy + min(now - before, 2 * pause) - (starved_now - starved))
            before, starved = now, starved_now
            if self._busy >= self._seconds:
                signal.raise_signal(UNRESPONSIVE)


def starved_seconds(thread: int) -> float:
    """For which a thread was ready to run, and no processor was free; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def limit_memory(settings: Settings) -> int:
    """Limit the data of this process, and of each that it starts from now on: allocations beyond it fail. Returns
    the bytes.

    Raises SettingError if the limit leaves no room for tasks.
    """
    limit, used = settings.runner_memory_mb << 20, resident_bytes()
    room = settings.sandbox_memory_mb << 20
    if limit < used + room:
        needed = (used + room >> 20) + 1
        raise SettingError(
            f"SAGE_RUNNER_MEMORY_MB={settings.runner_memory_mb} is too little: a runner takes {used >> 20} MB, "
            f"and SAGE_SANDBOX_MEMORY_MB is {settings.sandbox_memory_mb}: set at least {needed}"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    return limit


class MemoryWatch:
    """While entered, calls `on_excess` once if the process takes nearly `limit` bytes."""

    def __init__(self, limit: int, on_excess: Callable[[], None]) -> None:
        self.limit = limit
        self.used = resident_bytes()
        self.excess = ""  # what is wrong, once it is
        self._on_excess = on_excess
        self._loop = Loop("memory", self._look, _MEMORY_SECONDS)

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

    async def _look(self) -> None:
        self.used = resident_bytes()
        if self.used > _FULL * self.limit and not self.excess:
            self.excess = (
                f"the runner takes {self.used >> 20} MB, near its limit of {self.limit >> 20} MB "
                "(SAGE_RUNNER_MEMORY_MB), and is replaced"
            )
            self._on_excess()


def resident_bytes() -> int:
    """Memory of this process, without the files it maps; on other systems than Linux its peak."""
    if sys.platform == "linux":
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        return (resident - shared) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
