"""Conversations as JSON lines, in the chat format that TRL and LLaMA-Factory read.

A line is an object with `messages`, a list of {"role", "content"}; all other columns are metadata.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.base.errors import InvalidError
from app.base.untrusted import JsonError, decode_json
from app.base.values import Json
from app.engine.tokenizer import Message

_MAX_VALUES, _MAX_DEPTH = 100_000, 100  # of one line
_ROLES = ("system", "user", "assistant")


class ChatRecord(msgspec.Struct, frozen=True):
    """A conversation that ends with an answer, and its metadata."""

    messages: tuple[Message, ...]
    about: dict[str, Json] = {}

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the first answer."""
        first = next(index for index, message in enumerate(self.messages) if message.role == "assistant")
        return self.messages[:first]


def from_line(line: bytes) -> ChatRecord:
    """Parse a line. Raises InvalidError that names the fault."""
    try:
        columns = decode_json(line, max_values=_MAX_VALUES, max_depth=_MAX_DEPTH)
    except JsonError as error:
        raise InvalidError(f"not JSON ({error})") from error
    if not isinstance(columns, dict) or not isinstance(columns.get("messages"), list):
        raise InvalidError("not an object with a list `messages`")
    messages = tuple(map(_message, columns.pop("messages")))
    _check_order(messages)
    return ChatRecord(messages, columns)


def _message(given: Any) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("content"), str):
        raise InvalidError('a message must be {"role": ..., "content": "text"}')
    role = given.get("role")
    if role not in _ROLES:
        raise InvalidError(f"the role {role!r} is none of {', '.join(_ROLES)}: give the results of tools as user")
    return Message(role, given["content"])


def _check_order(messages: Sequence[Message]) -> None:
    """Any messages may come first; from the first answer on, user and assistant must alternate."""
    roles = [message.role for message in messages]
    if not roles or roles[-1] != "assistant":
        raise InvalidError("the conversation must end with an answer of the assistant")
    first = roles.index("assistant")
    if first == 0:
        raise InvalidError("the conversation must not begin with the assistant")
    for position, role in enumerate(roles[first:]):
        if role != ("assistant", "user")[position % 2]:
            raise InvalidError(
                f"after the first answer, user and assistant must alternate, but {role} comes out of turn"
            )
