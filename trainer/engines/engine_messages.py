"""Messages between a trainer and the engine in its child process: a 4-byte length, then MessagePack."""

import asyncio
from typing import TypeAlias

import msgspec

from app.engine.protocol import Completion, Sampling

_LENGTH_BYTES = 4


class _Message(msgspec.Struct, frozen=True, array_like=True):
    number: int  # of the request; its reply has the same


class SampleRequest(_Message, frozen=True, tag="sample"):
    """Sample one completion."""

    model: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling


class CancelRequest(_Message, frozen=True, tag="cancel"):
    """Cancel the request of this number, and send no reply."""


class LoadRequest(_Message, frozen=True, tag="load"):
    """Load an adapter from a directory. Safe to repeat."""

    name: str
    path: str


class UnloadRequest(_Message, frozen=True, tag="unload"):
    """Unload an adapter. Safe to repeat."""

    name: str


class SampleReply(_Message, frozen=True, tag="completion"):
    completion: Completion


class OkReply(_Message, frozen=True, tag="ok"):
    """The reply to LoadRequest and UnloadRequest."""


class ReadyReply(_Message, frozen=True, tag="ready"):
    """The engine is ready. Sent once, with number 0."""

    max_length: int  # of a sequence, prompt included: of the model, or of the KV cache


class ErrorReply(_Message, frozen=True, tag="error"):
    reason: str
    status: int  # as in HTTP


EngineRequest: TypeAlias = SampleRequest | CancelRequest | LoadRequest | UnloadRequest
EngineReply: TypeAlias = SampleReply | OkReply | ReadyReply | ErrorReply
_REQUESTS: msgspec.msgpack.Decoder[EngineRequest] = msgspec.msgpack.Decoder(EngineRequest)
_REPLIES: msgspec.msgpack.Decoder[EngineReply] = msgspec.msgpack.Decoder(EngineReply)


def write(writer: asyncio.StreamWriter, message: EngineRequest | EngineReply) -> None:
    """Write a message to an unlimited buffer: senders wait for their replies, so few messages are under way."""
    body = msgspec.msgpack.encode(message)
    writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


async def read_request(reader: asyncio.StreamReader) -> EngineRequest:
    """Raises IncompleteReadError or ConnectionError at the end of the stream."""
    return _REQUESTS.decode(await _read_frame(reader))


async def read_reply(reader: asyncio.StreamReader) -> EngineReply:
    """Raises IncompleteReadError or ConnectionError at the end of the stream."""
    return _REPLIES.decode(await _read_frame(reader))


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return await reader.readexactly(length)
