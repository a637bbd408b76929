"""Files of conversations; see `app.datasets.chat_lines` for a line."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from app.datasets.chat_lines import ChatRecord, from_line
from app.engine.tokenizer import Message
from app.errors import InvalidError
from app.records import Json, Trajectory
from trainer.atomic_write import write_atomically

_LINES = 200  # of a prompt, that are read at its beginning and at its end


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
        "outcome": [turn.outcome for turn in trajectory.turns],  # other than "ok": its code failed
        "offered": [offer.name for offer in trajectory.offered],
        "used": [offer.name for offer in trajectory.used()],
    }
    return ChatRecord(tuple(messages[:-1]), facts | dict(about or {}))


def asked(record: ChatRecord) -> tuple[str, str | None]:
    """Instruction and scenario of its task: by its metadata, or its first user message is the instruction."""
    instruction, scenario = record.about.get("instruction"), record.about.get("scenario")
    return (
        instruction if isinstance(instruction, str) else _first_message(record),
        scenario if isinstance(scenario, str) else None,
    )


def prompt_lines(record: ChatRecord) -> list[str]:
    """The lines of its first user message, one of which is the instruction in the prompts of this server."""
    lines = _first_message(record).splitlines()
    return [line.removeprefix("Task: ") for line in (*lines[:_LINES], *lines[_LINES:][-_LINES:])]


def _first_message(record: ChatRecord) -> str:
    return next((each.content for each in record.opening if each.role == "user"), "")


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
