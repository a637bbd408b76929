"""Runs untrusted code in this process: its streams, its CPU time, and the exception that ended it."""

import io
import mmap
import sys
from collections.abc import Callable
from contextlib import suppress

from app.sandbox.child import traces
from app.sandbox.child.channel import HostChannel
from app.sandbox.child.cpu import CpuLimit
from app.sandbox.child.name_hints import KnownNames, add_name_hint
from app.sandbox.child.output import Output
from app.sandbox.child.subscript_hints import add_hint

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
        if self.bounded(lambda: texts.append(traces.describe(error))):
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
            self.output.write(f"{ignored.err_msg or 'Exception ignored in'}: {name}\n{traces.describe(error)}\n")

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
