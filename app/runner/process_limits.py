"""Limits on a runner process: one that is stuck ends within seconds, one that grows too large is replaced."""

import faulthandler
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from app.errors import SettingError
from app.loop import Loop
from app.settings import Settings

_PULSES = 4  # of the watchdog, within the seconds after which it bites
_MEMORY_SECONDS = 0.5  # between two looks at the memory
_FULL = 0.9  # of the limit: the process is replaced before allocations fail


class Watchdog:
    """While entered, ends the process if the event loop stops for `seconds`, and logs what it was executing.

    The clock runs in a thread of C code, so it needs no GIL: also a regular expression cannot hold it up.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = Loop("watchdog", self._postpone, seconds / _PULSES)

    async def __aenter__(self) -> Self:
        await self._postpone()
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        faulthandler.cancel_dump_traceback_later()

    async def _postpone(self) -> None:
        faulthandler.dump_traceback_later(self._seconds, exit=True)


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
