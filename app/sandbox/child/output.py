"""What the code prints, sent on while it runs and cut at the limit, so that neither side ever holds more."""

import io
import time

from app.sandbox.child.channel import HostChannel
from app.sandbox.child.cpu import CpuLimit

_CHUNK_CHARS = 8192
_DELAY_SECONDS = 0.05  # full lines that are lost at most when the process is killed
_monotonic = time.monotonic


class Output(io.TextIOBase):
    """Stands for both sys.stdout and sys.stderr."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdout>"

    def __init__(self, channel: HostChannel, cpu: CpuLimit, max_chars: int) -> None:
        self._channel = channel
        self._cpu = cpu
        self._max_chars = max_chars
        self.restart()

    def restart(self) -> None:
        """A new run: the whole allowance again."""
        self._left = self._max_chars
        self._waiting: list[str] = []
        self._waiting_chars = 0
        self._delivered = 0.0

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        length = str.__len__(text)
        kept = str.__getitem__(text, slice(0, max(self._left, 0)))
        if not str.isascii(kept):
            str.encode(kept)  # raises for half a surrogate pair, as a real stream does
        with self._cpu.held_back():
            self._keep(kept)
            if length > len(kept) and self._left >= 0:
                self._left = -1
                self._keep(f"\n[output cut after {self._max_chars:,} characters]\n")
        return length

    def deliver(self) -> None:
        """Send what waits."""
        if self._waiting:
            text = "".join(self._waiting)
            self._waiting, self._waiting_chars = [], 0
            for start in range(0, len(text), _CHUNK_CHARS):
                self._channel.send("out", text[start : start + _CHUNK_CHARS])
        self._delivered = _monotonic()

    def _keep(self, text: str) -> None:
        if self._left > 0:
            self._left -= len(text)
        self._waiting.append(text)
        self._waiting_chars += len(text)
        late = text.endswith("\n") and _monotonic() - self._delivered > _DELAY_SECONDS
        if late or self._waiting_chars >= _CHUNK_CHARS:
            self.deliver()
