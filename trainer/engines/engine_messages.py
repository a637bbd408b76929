"""What goes between a trainer and the engine in its child process: a 4-byte length, then MessagePack."""

import asyncio
from typing import TypeAlias

import msgspec

_LENGTH_BYTES = 4


class _Message(msgspec.Struct, frozen=True, array_like=True):
    number: int  # of the question; its answer bears the same


class Ask(_Message, frozen=True, tag="ask"):
    """Sample one continuation."""

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int | None
    stops: tuple[int, ...]


class Forget(_Message, frozen=True, tag="forget"):
    """Nobody waits for the answer any more."""


class Load(_Message, frozen=True, tag="load"):
    """Load an adapter from a directory; one that is there already is left as it is."""

    name: str
    path: str


class Unload(_Message, frozen=True, tag="unload"):
    """Let an adapter go; one that is not there is gone already."""

    name: str


class Sampled(_Message, frozen=True, tag="sampled"):
    """The answer to Ask."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str


class Done(_Message, frozen=True, tag="done"):
    """The answer to Load and Unload, and, with number 0, the word that the engine is ready."""


class Refused(_Message, frozen=True, tag="refused"):
    """The answer where there is none: why, and how grave it is, as an HTTP status."""

    reason: str
    status: int


Question: TypeAlias = Ask | Forget | Load | Unload
Answer: TypeAlias = Sampled | Done | Refused
_QUESTIONS: msgspec.msgpack.Decoder[Question] = msgspec.msgpack.Decoder(Question)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def write(writer: asyncio.StreamWriter, message: Question | Answer) -> None:
    """Buffered without a limit: both ends wait for answers, so what is under way is bounded by who asks."""
    body = msgspec.msgpack.encode(message)
    writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


async def read_question(reader: asyncio.StreamReader) -> Question:
    """Raises IncompleteReadError or ConnectionError at the end."""
    return _QUESTIONS.decode(await _frame(reader))


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Raises IncompleteReadError or ConnectionError at the end."""
    return _ANSWERS.decode(await _frame(reader))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return await reader.readexactly(length)
