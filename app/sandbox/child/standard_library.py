"""The standard library as the agent's code finds it: imported before files become inaccessible; asyncio, threads
and executors on a single thread; and, for training worlds, a clock that only sleep advances.
"""

import asyncio
import concurrent.futures
import ctypes
import datetime
import gc
import hashlib
import importlib
import threading
import time
import zoneinfo
from collections.abc import Callable
from time import struct_time
from typing import Any

_NAMES = """
abc argparse array ast asyncio base64 binascii bisect calendar cmath codecs collections collections.abc colorsys
concurrent.futures concurrent.futures.thread contextlib contextvars copy csv dataclasses datetime decimal
difflib dis email email.mime.text email.utils enum errno fnmatch fractions functools gc getpass glob graphlib
gzip hashlib heapq hmac html html.entities html.parser inspect io ipaddress itertools json keyword linecache
locale logging math mimetypes numbers opcode operator os pathlib pickle platform pprint queue random re reprlib
sched secrets shlex shutil signal socket stat statistics string stringprep struct subprocess sys tempfile
textwrap threading time timeit token tokenize traceback types typing unicodedata urllib.error urllib.parse uuid
warnings weakref xml.dom.minidom xml.etree.ElementTree xml.sax.saxutils zipfile zlib zoneinfo _strptime
encodings.ascii encodings.base64_codec encodings.cp1252 encodings.hex_codec encodings.idna encodings.latin_1
encodings.punycode encodings.raw_unicode_escape encodings.rot_13 encodings.unicode_escape encodings.utf_16
encodings.utf_16_be encodings.utf_16_le encodings.utf_32 encodings.utf_8_sig
"""


def preload() -> list[object]:
    """Import all modules. Keep the result: time zones are cached only while they are referenced."""
    modules: list[object] = [importlib.import_module(name) for name in _NAMES.split()]
    hashlib.sha256(b"").hexdigest()  # OpenSSL reads its configuration at the first use
    return modules + [zoneinfo.ZoneInfo(key) for key in sorted(zoneinfo.available_timezones())]


class _NoSelector:
    """Waits for timeouts only."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits for another one: this would never end")
        if timeout > 0:
            time.sleep(timeout)
        return []

    def close(self) -> None: ...


class SerialLoop(asyncio.BaseEventLoop):
    """An event loop without files, sockets and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector()

    def time(self) -> float:
        return time.monotonic()

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised by awaiting the future
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


class SerialPolicy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = SerialLoop


class SerialExecutor(concurrent.futures.Executor):
    """Replaces both pools: runs each submission immediately."""

    def __init__(
        self, max_workers: int | None = None, *_args: Any, initializer: Any = None, initargs: Any = (), **_kw: Any
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        self._closed = False
        if initializer is not None:
            initializer(*initargs)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised by result(), as in a pool
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - the signature of the original
        self._closed = True


def install() -> None:
    """Replace everything that needs a second thread in the modules that the agent's code imports."""
    asyncio.set_event_loop_policy(SerialPolicy())
    for name in ("ThreadPoolExecutor", "ProcessPoolExecutor"):
        setattr(concurrent.futures, name, SerialExecutor)
    for kind, name, method in (
        (threading.Thread, "start", _start),
        (threading.Thread, "join", _join),
        (threading.Thread, "is_alive", _is_alive),
        (threading.Timer, "run", _run_timer),
        (threading.Condition, "wait", _wait),
    ):
        setattr(kind, name, method)


def _start(thread: threading.Thread) -> None:
    """Run the thread to its end."""
    if thread.__dict__.get("_ended") is not None:
        raise RuntimeError("threads can only be started once")
    thread.__dict__["_ended"] = False
    try:
        thread.run()
    except SystemExit:
        pass
    except Exception as error:  # noqa: BLE001 - ends the thread and is printed, as usual
        threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, thread)))
    finally:
        thread.__dict__["_ended"] = True


def _join(thread: threading.Thread, timeout: float | None = None) -> None:  # noqa: ARG001 - the signature of the original
    ended = thread.__dict__.get("_ended")
    if ended is None:
        raise RuntimeError("cannot join thread before it is started")
    if not ended:
        raise RuntimeError("cannot join current thread")


def _is_alive(thread: threading.Thread) -> bool:
    return thread.__dict__.get("_ended") is False or thread is threading.main_thread()


def _run_timer(timer: Any) -> None:
    if not timer.finished.is_set():
        time.sleep(timer.interval)
        timer.function(*timer.args, **timer.kwargs)
    timer.finished.set()


def _wait(_condition: threading.Condition, timeout: float | None = None) -> bool:
    if timeout is None:
        raise RuntimeError("nobody is left to wake this wait: threads here run one after another")
    time.sleep(max(0.0, timeout))
    return False


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
