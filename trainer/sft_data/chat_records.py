"""Files of conversations; see `app.datasets.chat_lines` for a line."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from app.datasets.chat_lines import ChatRecord, from_line
from app.engine.tokenizer import Message
from app.errors import InvalidError
from app.records import Json, Trajectory
from trainer.atomic_write import write_atomically


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


def write_records(records: Iterable[ChatRecord], path: Path) -> int:
    """Write the records, completely or not at all, and return their number. Raises StorageError."""
    lines = [to_line(record) for record in records]
    write_atomically(b"".join(lines), path)
    return len(lines)


def read_records(path: Path, name: str = "") -> list[ChatRecord]:
    """All records in order; empty lines are skipped. Raises InvalidError that names the line that does not fit.

    Errors call the file by its name, or by its path without one.
    """
    name = name or str(path)
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise InvalidError(f"{name} cannot be read ({error.strerror}): name a JSONL file of chats") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                records.append(from_line(line))
            except InvalidError as error:
                raise InvalidError(f"{name}, line {number}: {error}") from error
    if not records:
        raise InvalidError(f"{name} holds no conversation: it needs one JSON object per line")
    return records
