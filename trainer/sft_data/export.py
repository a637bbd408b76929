"""Scored tasks of a running server as chats, to train on elsewhere or to look at."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

from app.agent.prompt import PROFILES
from app.apis.builtin import with_builtins
from app.apis.catalog import Catalog
from app.records import Json, Offer, Policy, Stop, Task, Trajectory, Turn
from trainer.client import SageClient
from trainer.sft_data.chat_records import ChatRecord, record_of

_PAGE = 200
_TOKENLESS: dict[str, tuple[int, ...]] = {"context_ids": (), "sampled_ids": (), "logprobs": ()}
NO_TURN = "it ended before its first turn"
UNKNOWN_PROFILE = "its prompt profile is not known here"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks: those that ended by themselves and have a score."""

    project: str | None = None  # None: all that the key is good for
    min_score: float = 0.0
    since: datetime | None = None  # submitted after
    until: datetime | None = None  # and before
    limit: int = 10_000  # the newest


class Exported(msgspec.Struct, frozen=True):
    """The chats, oldest first, and why the other tasks became none."""

    records: list[ChatRecord]
    left_out: dict[str, int]


class _Line(msgspec.Struct, frozen=True):
    id: UUID
    project: str
    instruction: str
    scenario: str | None
    score: float


class _View(msgspec.Struct, frozen=True):
    policy: Policy
    profile: str
    stop: Stop
    answer: Json
    offered: tuple[Offer, ...]
    turns: tuple[dict[str, Any], ...]


def export(server: SageClient, wanted: Wanted, report: Callable[[], object], *, page: int = _PAGE) -> Exported:
    """Read over REST, `page` tasks at a time; `report` hears of each task that was read.

    A chat opens as the task's prompt profile opens it with the APIs that the project has now. Raises ServerError.
    """

    @cache
    def apps(project: str) -> dict[str, str]:
        named = [line["name"] for line in server.request("GET", "/v1/apis", project=project)]
        described = {name: server.request("GET", f"/v1/apis/{name}", project=project) for name in named}
        builtin = {app.name: app.description for app in with_builtins(Catalog({})).apps.values()}
        return builtin | {name: str(api["description"]) for name, api in described.items()}

    records: list[ChatRecord] = []
    left_out = Counter[str]()
    for line in islice(_lines(server, wanted, page), wanted.limit):
        trajectory = _trajectory(server, line)
        profile = PROFILES.get(trajectory.profile)
        if profile is None or not trajectory.turns:
            left_out[NO_TURN if profile else UNKNOWN_PROFILE] += 1
        else:
            opening = profile.opening(trajectory.task, trajectory.offered, apps(line.project))
            records.append(record_of(trajectory, opening, {"project": line.project, "score": line.score}))
        report()
    return Exported(records[::-1], dict(left_out))


def _lines(server: SageClient, wanted: Wanted, size: int) -> Iterator[_Line]:
    """Newest first."""
    cursor = None
    while True:
        page = server.request(
            "GET",
            "/v1/tasks",
            state="done",
            project=wanted.project,
            min_score=wanted.min_score,
            created_after=wanted.since and wanted.since.isoformat(),
            created_before=wanted.until and wanted.until.isoformat(),
            cursor=cursor,
            limit=size,
        )
        yield from msgspec.convert(page["tasks"], list[_Line])
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _trajectory(server: SageClient, line: _Line) -> Trajectory:
    """Without tokens: they are no part of a chat."""
    view = msgspec.convert(server.request("GET", f"/v1/tasks/{line.id}/trajectory", tokens="false"), _View)
    return Trajectory(
        task=Task(line.id, line.instruction, line.project, line.scenario),
        policy=view.policy,
        profile=view.profile,
        turns=tuple(msgspec.convert(turn | _TOKENLESS, Turn) for turn in view.turns),
        stop=view.stop,
        answer=view.answer,
        offered=view.offered,
    )
