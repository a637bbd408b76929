"""The host's end of one confined process: its messages, its CPU time, its end."""

import asyncio
import secrets
from contextlib import suppress

import msgspec

from app.records import Json
from app.sandbox.fork import Fork
from app.sandbox.frames import LENGTH_BYTES, pack, plain
from app.sandbox.reader import MessageReader, SessionMessage

_GROWTH = 6  # a byte of text takes up to 6 bytes as JSON
_SLACK = 1 << 16
_MAX_MESSAGES = 20_000  # of one run, without its calls
_NODES_AT_ONCE = 10_000  # of a value, copied without a thread: some milliseconds


class ConfinedProcess:
    """A fork and its socket. It runs only between `start` and `pause`: otherwise it is stopped.

    Each run has a random number, which every message of the run must bear: code that a run leaves behind does not
    know the number of the next one.
    """

    def __init__(
        self, fork: Fork, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame_bytes: int
    ) -> None:
        self.fork = fork
        self.alive = True
        self._cpu_at_start = self._cpu_at_pause = 0.0
        self._messages = MessageReader(reader, frame_bytes)
        self._writer = writer
        self._frame_bytes = frame_bytes

    async def start(self, kind: str, *fields: Json, calls: int = 0) -> None:
        """Begin the next run, which may send so many calls."""
        number = secrets.token_hex(8)
        self._messages.expect(number, messages=_MAX_MESSAGES, calls=calls)
        self._cpu_at_start = self._cpu_at_pause
        self.fork.resume()
        await self.send([kind, number, *fields])

    def pause(self) -> None:
        """Stop the process until the next run, to which counts what it runs until the signal reaches it."""
        self.fork.stop()
        self._cpu_at_pause = self.fork.cpu_seconds()

    def cpu_seconds(self) -> float:
        """CPU time of this run, and of the process since the last pause."""
        return self.fork.cpu_seconds() - self._cpu_at_start

    async def send(self, message: Json) -> None:
        """Raises ConnectionError if the process died."""
        self._writer.write(self._frame(message))
        await self._writer.drain()

    async def next(self) -> SessionMessage:
        """The next message of this run. Raises IncompleteReadError, ConnectionError or ViolationError."""
        return await self._messages.next()

    async def copy(self, value: Json) -> Json:
        """A plain copy to send; a large value is copied in a thread. Raises TypeError or ValueError as `plain`."""
        try:
            return plain(value, self._frame_bytes, _NODES_AT_ONCE)
        except ValueError:
            return await asyncio.to_thread(plain, value, self._frame_bytes)

    async def close(self) -> None:
        """Kill the process."""
        self.alive = False
        self.fork.close()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def _frame(self, message: Json) -> bytes:
        max_bytes = self._frame_bytes * _GROWTH + _SLACK
        try:
            body = msgspec.json.encode(message)  # several times faster than `pack`
        except UnicodeEncodeError:  # half a surrogate pair in code
            return pack(message, max_bytes)
        if len(body) > max_bytes:
            raise ValueError(f"it takes {len(body):,} bytes, at most {max_bytes:,} are allowed")
        return len(body).to_bytes(LENGTH_BYTES, "big") + body
