"""Reads the messages of a session. Bytes, depth, values and messages are limited before anything is trusted.

Every step takes time linear in the frame, and memory of a few times its size, whatever it holds.
"""

import asyncio
import re
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np

from app.records import Json
from app.sandbox.call_arguments import MARK, decode_arguments
from app.sandbox.frames import LENGTH_BYTES, MAX_DEPTH, MAX_NODES, plain

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
