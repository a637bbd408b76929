"""Files of conversations, as TRL and LLaMA-Factory read them, and the export of a server's scored tasks to one.

See `app.runs.chat_lines` for a line.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from uuid import UUID

import msgspec

from app.agent.prompts import PROFILES
from app.apis.catalog import Catalog, with_builtins
from app.apis.listing import ListedApp, listed_apps
from app.base.errors import InvalidError
from app.base.files import write_atomically
from app.base.values import Json, Offer, Policy, Stop, Task, Trajectory, Turn, Use
from app.client.server import SageClient
from app.engine.tokenizer import Message
from app.runs.chat_lines import ChatRecord, from_line

_LINES = 200  # of a prompt, that are read at its beginning and at its end
NO_TURN = "it ended before its first turn"
HELD_SECRETS = "the policy read or wrote a secret"
UNKNOWN_PROFILE = "its prompt profile is not known here"


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


def write_records(records: Iterable[ChatRecord], path: Path) -> None:
    """Write the records, completely or not at all. Raises StorageError."""
    write_atomically(b"".join(map(to_line, records)), path)


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


class ExportFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the finished and scored tasks to export."""

    project: str | None = None  # None: all that the key may read
    min_score: float = 0.0
    since: datetime | None = None  # submitted after
    until: datetime | None = None  # and before
    limit: int = 10_000  # the newest


class ExportedChats(msgspec.Struct, frozen=True):
    """The chats, oldest first, and the number of tasks left out by reason."""

    records: list[ChatRecord]
    left_out: dict[str, int]


class _TaskSummary(msgspec.Struct, frozen=True):
    id: UUID
    project: str
    instruction: str
    scenario: str | None
    score: float
    conversation: str = ""


class _TurnView(msgspec.Struct, frozen=True):
    text: str
    finish_reason: str
    observation: str
    uses: tuple[Use, ...]
    outcome: str = ""


class _TrajectoryView(msgspec.Struct, frozen=True):
    policy: Policy
    profile: str
    stop_reason: Stop
    answer: Json
    offered: tuple[Offer, ...]
    turns: tuple[_TurnView, ...]
    masked: bool = False


class _ExportedTask(msgspec.Struct, frozen=True):
    task: _TaskSummary
    trajectory: _TrajectoryView


_DECODER = msgspec.json.Decoder(_ExportedTask)


def export_chats(server: SageClient, wanted: ExportFilter, report: Callable[[], object]) -> ExportedChats:
    """Read over REST, as one stream; `report` is called for each task.

    A chat opens as the task's prompt profile opens it with the project's current APIs. Raises ServerError.
    """

    @cache
    def apps(project: str) -> list[ListedApp]:
        names = [each["name"] for each in server.request("GET", "/v1/apis", project=project)]
        views = [server.request("GET", f"/v1/apis/{name}", project=project) for name in names]
        listed = {app.name: app for app in listed_apps(with_builtins(Catalog()))}
        for view in views:
            listed[view["name"]] = msgspec.convert(view | {"signatures": view.get("prompt_signatures")}, ListedApp)
        return list(listed.values())

    records: list[ChatRecord] = []
    left_out = Counter[str]()
    for task, trajectory in _tasks(server, wanted):
        profile = PROFILES.get(trajectory.profile)
        if profile is None or not trajectory.turns or trajectory.masked:
            reason = HELD_SECRETS if trajectory.masked else NO_TURN if profile else UNKNOWN_PROFILE
            left_out[reason] += 1
        else:
            opening = profile.opening(trajectory.task, trajectory.offered, apps(task.project))
            records.append(record_of(trajectory, opening, {"project": task.project, "score": task.score}))
        report()
    return ExportedChats(records[::-1], dict(left_out))


def _tasks(server: SageClient, wanted: ExportFilter) -> Iterator[tuple[_TaskSummary, Trajectory]]:
    """The finished and scored tasks, newest first, with their trajectories."""
    lines = server.lines(
        "/v1/tasks/export",
        project=wanted.project,
        min_score=wanted.min_score,
        created_after=wanted.since and wanted.since.isoformat(),
        created_before=wanted.until and wanted.until.isoformat(),
        limit=wanted.limit,
    )
    for line in lines:
        exported = _DECODER.decode(line)
        task, view = exported.task, exported.trajectory
        yield (
            task,
            Trajectory(
                task=Task(task.id, task.instruction, task.project, task.scenario, conversation=task.conversation),
                policy=view.policy,
                profile=view.profile,
                turns=tuple(map(_turn, view.turns)),
                masked=view.masked,
                stop=view.stop_reason,
                answer=view.answer,
                offered=view.offered,
            ),
        )


def _turn(turn: _TurnView) -> Turn:
    """Without tokens, which a chat does not contain."""
    return Turn(
        context_ids=(),
        sampled_ids=(),
        logprobs=(),
        text=turn.text,
        finish=turn.finish_reason,
        observation=turn.observation,
        uses=turn.uses,
        outcome=turn.outcome,
    )
