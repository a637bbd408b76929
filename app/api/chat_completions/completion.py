"""A chat completion in responses."""

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from app.base.values import Json
from app.db import tables

Finish = Literal["stop", "length"]


class ChatUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the model in all turns of the task. What one turn has read counts once, though later ones go on
    from it. A hosted model has read the whole prompt in each turn, which its provider charges.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, turns: Iterable[Mapping[str, Json]]) -> "ChatUsage":
        """Of the data of the events of all turns."""
        data = list(turns)
        read, written = (sum(each.get(name, 0) for each in data) for name in ("context_tokens", "tokens"))
        return cls(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """`length`: a limit ended the task before it was done."""

    message: AnswerMessage
    finish_reason: Finish
    index: int = 0
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is `chatcmpl-` and the id of the task."""

    id: str
    created: int  #: seconds since 1970
    model: str
    choices: list[Choice]
    usage: ChatUsage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`reasoning_content` is what the agent does until it has the answer."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    delta: Delta
    finish_reason: Finish | None = None
    index: int = 0
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: ChatUsage | None = None
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


def completion_id(task: tables.Task) -> str:
    return f"chatcmpl-{task.id}"


def created_at(task: tables.Task) -> int:
    return int(task.created_at.timestamp())
