"""The host's end of one confined process: its messages, of which bytes, depth, values and number are limited
before anything is trusted, its CPU time, its end.
"""

import asyncio
import re
import secrets
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np

from app.base.errors import SandboxError
from app.base.values import Json
from app.sandbox.forks import Fork
from app.sandbox.protocol import SessionLimits
from app.sandbox.wire import LENGTH_BYTES, MARK, MAX_DEPTH, MAX_NODES, decode_arguments, frame, pack, plain

_SLACK = 1 << 18  # of a frame around its value, and one chunk of output
_OTHER_FRAMES = 16  # of the largest size, for all messages of a run that are not calls
_VALUES = MAX_NODES + 5  # those of a call, and what names it
_NESTED = MAX_DEPTH + 1  # brackets around and of the deepest container that a call may pass
_ANY_SIZE = 1 << 62
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{308}")  # may exceed the range of a float

Nanoseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]  # slept on a frozen clock


class ViolationError(Exception):
    """The other end broke the protocol: it no longer runs our code."""


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    run: str


class FailedMessage(_Message, frozen=True, tag="failed"):
    """A skill does not load."""

    reason: str


class OutputMessage(_Message, frozen=True, tag="out"):
    """The code printed text."""

    text: str


class CallMessage(_Message, frozen=True, tag="call"):
    """The code calls an API and waits for the result."""

    api: str
    args: list[Json]  # and bytes in them
    kwargs: dict[str, Json]
    whole: bool = False  # status, headers and the next page are wanted, too


class SkillMessage(_Message, frozen=True, tag="skill"):
    """The code calls an offered skill and waits for the result."""

    name: str
    args: list[Json]  # encoded by `values`, as all that skills take and give
    kwargs: dict[str, Json]
    slept: Nanoseconds


class DoneMessage(_Message, frozen=True, tag="done"):
    """The run has ended."""

    stop: str
    error: str | None
    uses: list[tuple[str, int, int]]  # (function, calls, returned)


class LoadedMessage(_Message, frozen=True, tag="loaded"):
    """A process has loaded what it was sent."""

    parameters: list[tuple[str, Literal["positional", "keyword", "args", "kwargs"]]]  # of its one skill


class ReturnedMessage(_Message, frozen=True, tag="returned"):
    """The call of a skill has returned."""

    value: Json
    slept: Nanoseconds


class RaisedMessage(_Message, frozen=True, tag="raised"):
    """The call of a skill has raised."""

    error: str  # the last line of the traceback
    chain: list[Json]  # for the caller's process
    stop: Literal["error", "cpu", "memory"]
    slept: Nanoseconds


SkillEnd: TypeAlias = ReturnedMessage | RaisedMessage
SessionMessage: TypeAlias = (
    FailedMessage
    | OutputMessage
    | CallMessage
    | SkillMessage
    | DoneMessage
    | LoadedMessage
    | ReturnedMessage
    | RaisedMessage
)
_DECODER: msgspec.json.Decoder[SessionMessage] = msgspec.json.Decoder(SessionMessage)


class MessageReader:
    """The messages of one session, in order."""

    def __init__(self, reader: asyncio.StreamReader, max_bytes: int) -> None:
        self._reader = reader
        self._max_bytes = max_bytes + _SLACK
        self._run = ""
        self._messages_left = self._bytes_left = 0

    def expect(self, run: str, *, messages: int, calls: int = 0) -> None:
        """From now on accept messages of this run only: so many, and so many calls of the largest size."""
        self._run = run
        self._messages_left = messages + calls
        self._bytes_left = self._max_bytes * (_OTHER_FRAMES + calls)

    async def next(self) -> SessionMessage:
        """The next message. Raises IncompleteReadError if the process died, ViolationError if it is invalid."""
        self._messages_left -= 1
        if self._messages_left < 0:
            raise ViolationError("too many messages in one run")
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        self._bytes_left -= length
        if length > self._max_bytes or self._bytes_left < 0:
            raise ViolationError(f"a message of {length} bytes")
        message = _decode(await self._reader.readexactly(length))
        if message.run != self._run:
            raise ViolationError("a message of another run")
        return message


def _decode(frame: bytes) -> SessionMessage:
    _check_structure(frame)
    try:
        message = _DECODER.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ViolationError(f"not a message: {error}") from error
    if _LONG_NUMBER.search(frame):
        try:
            plain(msgspec.to_builtins(message), _ANY_SIZE, _ANY_SIZE)
        except ValueError as error:
            raise ViolationError("arguments that no honest sandbox sends") from error
    if isinstance(message, CallMessage) and MARK in frame:
        return _with_bytes(message)
    return message


def _with_bytes(message: CallMessage) -> CallMessage:
    try:
        args, kwargs = decode_arguments(message.args, message.kwargs)
    except ValueError as error:
        raise ViolationError("arguments that no honest sandbox sends") from error
    return msgspec.structs.replace(message, args=args, kwargs=kwargs)


def _check_structure(frame: bytes) -> None:
    """Reject a frame of too many or too deep values without decoding it; of invalid JSON, checks its start."""
    opened = frame.count(b"[") + frame.count(b"{")
    if opened <= _NESTED and opened + frame.count(b",") <= MAX_NODES:
        return
    if b"\\" in frame:
        frame = frame.replace(rb"\\", b"").replace(rb"\"", b"")
    data = np.frombuffer(frame, np.uint8)
    outside = np.bitwise_xor.accumulate((data == ord('"')).view(np.uint8)) == 0
    opens = ((data == ord("[")) | (data == ord("{"))) & outside
    closes = ((data == ord("]")) | (data == ord("}"))) & outside
    filled = np.count_nonzero(opens) - np.count_nonzero(opens[:-1] & closes[1:])
    if filled + np.count_nonzero((data == ord(",")) & outside) > _VALUES:
        raise ViolationError("a message of too many values")
    # A depth that wraps around has passed the limit before.
    if np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int16).max(initial=0) > _NESTED:
        raise ViolationError("a message nested too deep")


_GROWTH = 6  # a byte of text takes up to 6 bytes as JSON
_CONFINED_PROCESS_SLACK = 1 << 16
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
        max_bytes = self._limits.frame_bytes * _GROWTH + _CONFINED_PROCESS_SLACK
        try:
            body = msgspec.json.encode(message)  # several times faster than `pack`
        except UnicodeEncodeError:  # half a surrogate pair in code
            return pack(message, max_bytes)
        return frame(body, max_bytes)
