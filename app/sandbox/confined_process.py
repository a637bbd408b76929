"""The host's end of one confined process: its messages, its CPU time, its end."""

import asyncio
import secrets

import msgspec

from app.errors import SandboxError
from app.records import Json
from app.sandbox.fork import Fork
from app.sandbox.frames import frame, pack, plain
from app.sandbox.protocol import SessionLimits
from app.sandbox.reader import (
    FailedMessage,
    LoadedMessage,
    MessageReader,
    SessionMessage,
    ViolationError,
)

_GROWTH = 6  # a byte of text takes up to 6 bytes as JSON
_SLACK = 1 << 16
_MAX_MESSAGES = 20_000  # of one run, without its calls
_NODES_AT_ONCE = 10_000  # of a value, copied without a thread: some milliseconds


class UnusableSkillError(Exception):
    """A skill cannot be called at all."""


class DiedError(Exception):
    """The process died."""


class ConfinedProcess:
    """A fork and its socket. It runs only between `start` and `pause`: otherwise it is stopped.

    Each run has a random number, which every message of the run must bear: code that a run leaves behind does not
    know the number of the next one.
    """

    def __init__(
        self, fork: Fork, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: SessionLimits
    ) -> None:
        self.fork = fork
        self.alive = True
        self._cpu_at_start = self._cpu_at_pause = 0.0
        self._messages = MessageReader(reader, limits.frame_bytes)
        self._writer = writer
        self._limits = limits

    async def load(self, setup: dict[str, Json]) -> LoadedMessage:
        """Have it load skills. Raises UnusableSkillError if one does not load, else SandboxError."""
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                space = self.fork.address_space() + self._limits.memory_bytes
                await self.start("setup", setup | {"address_space": space})
                answer = await self.next()
            self.pause()
            if isinstance(answer, LoadedMessage):
                return answer
            if not isinstance(answer, FailedMessage):
                raise ViolationError("a message out of turn")
        except (DiedError, OSError, ViolationError) as error:
            raise SandboxError(f"a session could not be prepared: {str(error) or 'it took too long'}") from error
        raise UnusableSkillError(answer.reason)

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
        """Raises DiedError."""
        try:
            self._writer.write(self._frame(message))
            await self._writer.drain()
        except ConnectionError as error:
            raise DiedError("it died") from error

    async def next(self) -> SessionMessage:
        """The next message of this run. Raises DiedError or ViolationError."""
        try:
            return await self._messages.next()
        except (EOFError, ConnectionError) as error:
            raise DiedError("it died") from error

    async def copy(self, value: Json) -> Json:
        """A plain copy to send; a large value is copied in a thread. Raises TypeError or ValueError as `plain`."""
        try:
            return plain(value, self._limits.frame_bytes, _NODES_AT_ONCE)
        except ValueError:
            return await asyncio.to_thread(plain, value, self._limits.frame_bytes)

    def close(self) -> None:
        """Kill the process."""
        self.alive = False
        self.fork.close()
        self._writer.transport.abort()

    def _frame(self, message: Json) -> bytes:
        max_bytes = self._limits.frame_bytes * _GROWTH + _SLACK
        try:
            body = msgspec.json.encode(message)  # several times faster than `pack`
        except UnicodeEncodeError:  # half a surrogate pair in code
            return pack(message, max_bytes)
        return frame(body, max_bytes)
