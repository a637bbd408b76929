"""Runs untrusted code in this process: its streams, forwarded while it runs and truncated at the limit, its CPU
time, and the exception that ended it.
"""

import io
import mmap
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from app.sandbox.child import exceptions
from app.sandbox.child.channel import CpuLimit, HostChannel
from app.sandbox.child.hints import KnownNames, add_hint, add_name_hint

_CHUNK_CHARS = 8192
_DELAY_SECONDS = 0.05  # output that a kill can lose, at most
_monotonic = time.monotonic


class Output(io.TextIOBase):
    """Replaces both sys.stdout and sys.stderr."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdout>"

    def __init__(self, channel: HostChannel, cpu: CpuLimit, max_chars: int) -> None:
        self._channel = channel
        self._cpu = cpu
        self._max_chars = max_chars
        self.restart(max_chars)

    def restart(self, chars: int) -> None:
        """Begin a new run that may print so many characters; -1 if the notice was printed already."""
        self.left = chars  # also set when another process has printed for this one
        self._buffer: list[str] = []
        self._buffer_chars = 0
        self._flushed = 0.0

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        given = str.__len__(text)
        text = exceptions.without_places(str.__str__(text))
        length = str.__len__(text)
        kept = str.__getitem__(text, slice(0, max(self.left, 0)))
        if not str.isascii(kept):
            str.encode(kept)  # raises for half a surrogate pair, as a real stream does
        with self._cpu.deferred():
            self._append(kept)
            if length > len(kept) and self.left >= 0:
                self.left = -1
                self._append(f"\n[output cut after {self._max_chars:,} characters]\n")
        return given

    def flush_to_host(self) -> None:
        """Send the buffered output."""
        if self._buffer:
            text = "".join(self._buffer)
            self._buffer, self._buffer_chars = [], 0
            for start in range(0, len(text), _CHUNK_CHARS):
                self._channel.send("out", text[start : start + _CHUNK_CHARS])
        self._flushed = _monotonic()

    def _append(self, text: str) -> None:
        if self.left > 0:
            self.left -= len(text)
        self._buffer.append(text)
        self._buffer_chars += len(text)
        late = text.endswith("\n") and _monotonic() - self._flushed > _DELAY_SECONDS
        if late or self._buffer_chars >= _CHUNK_CHARS:
            self.flush_to_host()


_TRACE_SECONDS = 0.5  # to print an exception, which may run its own code, or a quarter of a lower limit
_RESERVE_BYTES = 4 << 20


class Execution:
    """The code's surroundings in one process."""

    def __init__(self, channel: HostChannel, cpu: CpuLimit, output: Output, known: KnownNames) -> None:
        self.cpu = cpu
        self.known = known
        self.output = output
        self._channel = channel
        self._reserve: mmap.mmap | None = None

    def attempt(self, action: Callable[[], object], cpu_seconds: float | None = None) -> BaseException | None:
        """Run `action` under the CPU limit, or the time that is left of it. Returns what it raised."""
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = self.output  # type: ignore[misc,assignment]
        sys.stdin = sys.__stdin__ = io.StringIO()  # type: ignore[misc,assignment]
        sys.unraisablehook = self._print_ignored
        if self._reserve is None:
            self._reserve = _reserve()
        error = self._run(action, cpu_seconds)
        if isinstance(error, MemoryError):
            self._reserve = None  # frees memory to report it
        sys.settrace(None)
        sys.setprofile(None)
        return error

    def stop(self, error: BaseException | None) -> str:
        """The reason for which the code ended."""
        if error is None:
            return "ok"
        if error is self.cpu.raised:
            return "cpu"
        return "memory" if type(error) is MemoryError else "error"

    def describe(self, error: BaseException) -> str:
        """The traceback. The exception's own __str__ may do anything, so it runs under a limit too."""
        texts: list[str] = []
        self.hint(error)
        if self.bounded(lambda: texts.append(exceptions.describe(error))):
            return texts[0]
        return f"{type(error).__name__}: <an exception that cannot be printed>"

    def hint(self, error: BaseException) -> None:
        """Let the exception say more, if anything is known."""
        self.bounded(lambda: add_hint(error, self._channel))
        self.bounded(lambda: add_name_hint(error, self.known))

    def _print_ignored(self, ignored: "sys.UnraisableHookArgs") -> None:
        """Of a finalizer: as Python prints it, but like all tracebacks here."""
        with suppress(BaseException):  # else Python prints where it failed, with our files
            name = getattr(ignored.object, "__qualname__", type(ignored.object).__name__)
            error = ignored.exc_value or ignored.exc_type()
            self.output.write(
                f"{ignored.err_msg or 'Exception ignored in'}: {name}\n{exceptions.describe(error)}\n"
            )

    def bounded(self, action: Callable[[], object]) -> bool:
        """Run code of an exception for a moment. Returns whether it succeeded."""
        return self._run(action, min(_TRACE_SECONDS, self.cpu.seconds / 4)) is None

    def _run(self, action: Callable[[], object], cpu_seconds: float | None) -> BaseException | None:
        try:
            self.cpu.arm(cpu_seconds)
            try:
                action()
            finally:
                self.cpu.disarm()
        except BaseException as error:  # noqa: BLE001 - the last resort: any exception of the code is an observation
            self.cpu.disarm()
            return error
        return None


def _reserve() -> mmap.mmap | None:
    """Reserved address space, never touched and so free of cost. None if there is none left."""
    try:
        return mmap.mmap(-1, _RESERVE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError):
        return None
