"""Export scored tasks of a running server as chats."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from uuid import UUID

import msgspec

from app.agent.prompt_profiles import PROFILES
from app.apis.builtin import with_builtins
from app.apis.catalog import Catalog
from app.apis.listed_app import ListedApp, listed_apps
from app.client.sage_client import SageClient
from app.datasets.chat_lines import ChatRecord
from app.records import Json, Offer, Policy, Stop, Task, Trajectory, Turn, Use
from trainer.sft_data.chat_records import record_of

NO_TURN = "it ended before its first turn"
HELD_SECRETS = "the policy read or wrote a secret"
UNKNOWN_PROFILE = "its prompt profile is not known here"


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
        yield exported.task, _trajectory(exported.task, exported.trajectory)


def _trajectory(task: _TaskSummary, view: _TrajectoryView) -> Trajectory:
    """Without tokens, which a chat does not contain."""
    return Trajectory(
        task=Task(task.id, task.instruction, task.project, task.scenario, conversation=task.conversation),
        policy=view.policy,
        profile=view.profile,
        turns=tuple(map(_turn, view.turns)),
        masked=view.masked,
        stop=view.stop_reason,
        answer=view.answer,
        offered=view.offered,
    )


def _turn(turn: _TurnView) -> Turn:
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
