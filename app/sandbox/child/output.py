"""Forwards the code's output while it runs, truncated at the limit, so that neither side holds more."""

import io
import time

from app.sandbox.child import traces
from app.sandbox.child.channel import HostChannel
from app.sandbox.child.cpu import CpuLimit

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
        text = traces.without_places(str.__str__(text))
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
