"""Standard output and error of a server process, which must not fail because a line cannot be written.

On a full disk or a closed pipe, lines are dropped and counted. The next one that can be written is preceded by
their number.
"""

import io
import json
import os
import sys
from typing import Any, cast


class GuardedFile(io.FileIO):
    """Writes to a descriptor without a buffer, and raises no OSError."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.dropped = 0  # lines, ever
        self._unreported = 0
        self._cause = ""
        self._at_line_start = True

    def write(self, data: Any, /) -> int:
        given = bytes(data)
        if not self._put(self._report() + given):
            lines = given.count(b"\n")
            self.dropped += lines
            self._unreported += lines
        return len(given)

    def _report(self) -> bytes:
        if not self._unreported:
            return b""
        line = {
            "event": "log lines were dropped",
            "level": "warning",
            "lines": self._unreported,
            "cause": self._cause,
        }
        return (b"" if self._at_line_start else b"\n") + json.dumps(line).encode() + b"\n"

    def _put(self, data: bytes) -> bool:
        left = memoryview(data)
        try:
            while left:
                written = os.write(self.fileno(), left)
                self._at_line_start = left[written - 1] == ord("\n")
                left = left[written:]
        except OSError as error:
            self._cause = error.strerror or type(error).__name__
            return False
        self._unreported = 0
        return True


def guard_output() -> None:
    """Replace both streams, for a process that must outlive its output. Those that a test has replaced stay."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            guarded = _guarded(stream)
            setattr(sys, name, guarded)
            setattr(sys, f"__{name}__", guarded)


def dropped_lines() -> int:
    """How many lines this process could not write."""
    files = (getattr(stream, "buffer", None) for stream in (sys.stdout, sys.stderr))
    return sum(file.dropped for file in files if isinstance(file, GuardedFile))


def _guarded(stream: Any) -> io.TextIOWrapper:
    stream.flush()
    file = cast("Any", GuardedFile(stream.fileno()))
    return io.TextIOWrapper(
        file, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=True
    )
