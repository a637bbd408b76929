"""Reads the messages of a session. Bytes, depth, nodes and messages are limited before anything is trusted."""

import asyncio
import re
from typing import TypeAlias

import msgspec

from app.records import Json
from app.sandbox.frames import LENGTH_BYTES, MAX_NODES

_SLACK = 1 << 18  # of a frame around its value, and one chunk of output
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


class ViolationError(Exception):
    """The other end broke the protocol: it no longer runs our code."""


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    run: int


class ReadyMessage(_Message, frozen=True, tag="ready"):
    """The offered functions are defined."""


class FailedMessage(_Message, frozen=True, tag="failed"):
    """An offered function does not load."""

    reason: str


class OutputMessage(_Message, frozen=True, tag="out"):
    """The code printed text."""

    text: str


class CallMessage(_Message, frozen=True, tag="call"):
    """The code calls an API and waits for the result."""

    api: str
    args: list[Json]
    kwargs: dict[str, Json]


class DoneMessage(_Message, frozen=True, tag="done"):
    """The run has ended."""

    stop: str
    error: str | None
    uses: list[tuple[str, bool, int, int]]


SessionMessage: TypeAlias = ReadyMessage | FailedMessage | OutputMessage | CallMessage | DoneMessage
_DECODER: msgspec.json.Decoder[SessionMessage] = msgspec.json.Decoder(SessionMessage)


class MessageReader:
    """The messages of one session, in order."""

    def __init__(self, reader: asyncio.StreamReader, max_bytes: int) -> None:
        self._reader = reader
        self._max_bytes = max_bytes + _SLACK

    async def next(self, run: int, messages_left: int) -> SessionMessage:
        """The next message. Raises IncompleteReadError if the process died, ViolationError if it is invalid."""
        if messages_left <= 0:
            raise ViolationError("too many messages in one run")
        length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
        if length > self._max_bytes:
            raise ViolationError(f"a message of {length} bytes")
        message = _decode(await self._reader.readexactly(length))
        if message.run != run:
            raise ViolationError("a message of another run")
        return message


def _decode(frame: bytes) -> SessionMessage:
    if _nodes(frame) > MAX_NODES and _nodes(_STRING.sub(b"", frame)) > MAX_NODES:
        raise ViolationError("a message of too many values")
    try:
        return _DECODER.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ViolationError(f"not a message: {error}") from error


def _nodes(frame: bytes) -> int:
    """An upper bound of the number of values in a frame, without decoding it."""
    return frame.count(b",") + frame.count(b"[") + frame.count(b"{")
