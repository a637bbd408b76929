"""A frozen clock that only sleep advances, so that a training world looks the same on every day.

The methods of `datetime` and `date` are replaced inside the classes, since subclasses would print and compare
differently. That needs ctypes, so it is done before the seccomp filter is installed.
"""

import ctypes
import datetime
import gc
import time
from time import struct_time
from typing import Any

_BILLION = 1_000_000_000
_MOST_NANOSECONDS = 1 << 62
_gmtime, _strftime, _asctime = time.gmtime, time.strftime, time.asctime


class Clock:
    """Counts nanoseconds since 1970 in UTC, which is the local time of every sandbox."""

    def __init__(self, now: float) -> None:
        microseconds = round(now * 1_000_000)
        self._started = self._now = microseconds * 1000

    def time_ns(self) -> int:
        return self._now

    def time(self) -> float:
        return self._now / _BILLION

    def monotonic_ns(self) -> int:
        return self._now - self._started

    def slept_ns(self) -> int:
        """The time since it was frozen, as a message can carry it."""
        return min(self.monotonic_ns(), _MOST_NANOSECONDS)

    def advance_to(self, nanoseconds: int) -> None:
        """Let the clock show this time since it was frozen, unless it is later already."""
        self._now = max(self._now, self._started + nanoseconds)

    def monotonic(self) -> float:
        return self.monotonic_ns() / _BILLION

    def sleep(self, seconds: float, /) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self._now += -int(-seconds * _BILLION // 1)  # rounded up: a sleep until t never ends before t

    def gmtime(self, seconds: float | None = None, /) -> struct_time:
        return _gmtime(self.time() if seconds is None else seconds)

    def ctime(self, seconds: float | None = None, /) -> str:
        return _asctime(self.gmtime(seconds))

    def asctime(self, moment: Any = None, /) -> str:
        return _asctime(self.gmtime() if moment is None else moment)

    def strftime(self, pattern: str, moment: Any = None, /) -> str:
        return _strftime(pattern, self.gmtime() if moment is None else moment)

    def now(self, cls: type[datetime.datetime], zone: datetime.tzinfo | None = None) -> datetime.datetime:
        seconds, rest = divmod(self._now, _BILLION)
        return cls.fromtimestamp(seconds, zone).replace(microsecond=rest // 1000)


def freeze(now: float) -> Clock:
    """Freeze every clock of this process at `now` (seconds since 1970)."""
    clock = Clock(now)
    methods = ("time", "time_ns", "monotonic", "monotonic_ns", "sleep", "gmtime", "ctime", "asctime", "strftime")
    for name, method in {
        **{name: name for name in methods},
        "localtime": "gmtime",
        "perf_counter": "monotonic",
        "perf_counter_ns": "monotonic_ns",
    }.items():
        setattr(time, name, getattr(clock, method))

    def now_(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return clock.now(cls, tz)

    def now_without_zone(cls: type[datetime.datetime]) -> datetime.datetime:
        return clock.now(cls)

    def today(cls: type[datetime.date]) -> datetime.date:
        return cls.fromtimestamp(clock.time())

    _replace_method(datetime.datetime, "now", now_)
    _replace_method(datetime.datetime, "utcnow", now_without_zone)
    _replace_method(datetime.datetime, "today", now_without_zone)
    _replace_method(datetime.date, "today", today)
    return clock


def _replace_method(kind: type, name: str, function: Any) -> None:
    function.__name__ = name
    function.__qualname__ = f"{kind.__name__}.{name}"
    (methods,) = (held for held in gc.get_referents(kind.__dict__) if isinstance(held, dict))
    methods[name] = classmethod(function)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
