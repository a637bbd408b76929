"""Conversations as JSON lines, in the chat format that TRL and LLaMA-Factory read.

A line is an object with `messages`, a list of {"role", "content"}; all other columns are metadata.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from app.engine.tokenizer import Message
from app.errors import InvalidError
from app.records import Json, Trajectory
from trainer.atomic_write import write_atomically

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


def record_of(
    trajectory: Trajectory, opening: Sequence[Message], about: Mapping[str, Json] | None = None
) -> ChatRecord:
    """A rollout as a conversation, without its last observation, which the policy never read.

    Raises InvalidError for a rollout without turns.
    """
    if not trajectory.turns:
        raise InvalidError(f"task {trajectory.task.id} ended before its first turn: there is nothing to export")
    messages = list(opening)
    for turn in trajectory.turns:
        messages += [Message("assistant", turn.text), Message("user", turn.observation)]
    facts = {
        "task": str(trajectory.task.id),
        "instruction": trajectory.task.instruction,
        "scenario": trajectory.task.scenario,
        "model": trajectory.policy.model,
        "profile": trajectory.profile,
        "stop": trajectory.stop.value,
        "finish": [turn.finish for turn in trajectory.turns],  # "length": the answer was cut off
        "offered": [offer.name for offer in trajectory.offered],
        "used": [offer.name for offer in trajectory.used()],
    }
    return ChatRecord(tuple(messages[:-1]), facts | dict(about or {}))


def to_line(record: ChatRecord) -> bytes:
    messages = [{"role": message.role, "content": message.content} for message in record.messages]
    return msgspec.json.encode({"messages": messages, **record.about}) + b"\n"


def from_line(line: bytes) -> ChatRecord:
    """Parse a line. Raises InvalidError that names the fault."""
    try:
        columns = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"not JSON ({error})") from error
    if not isinstance(columns, dict) or not isinstance(columns.get("messages"), list):
        raise InvalidError("not an object with a list `messages`")
    messages = tuple(map(_message, columns.pop("messages")))
    _check_order(messages)
    return ChatRecord(messages, columns)


def write_records(records: Iterable[ChatRecord], path: Path) -> int:
    """Write the records, completely or not at all, and return their number. Raises StorageError."""
    lines = [to_line(record) for record in records]
    write_atomically(b"".join(lines), path)
    return len(lines)


def read_records(path: Path) -> list[ChatRecord]:
    """All records in order; empty lines are skipped. Raises InvalidError that names the line that does not fit."""
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise InvalidError(f"{path} cannot be read ({error.strerror}): name a JSONL file of chats") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                records.append(from_line(line))
            except InvalidError as error:
                raise InvalidError(f"{path}, line {number}: {error}") from error
    if not records:
        raise InvalidError(f"{path} holds no conversation: it needs one JSON object per line")
    return records


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
