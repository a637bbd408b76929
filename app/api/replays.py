"""Routes for replays: a release does a finished task again on recorded calls, and both are shown side by side."""

from itertools import zip_longest
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.params import FromPath, JSONBody, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.values import Call, Json, Stop, Trajectory, Turn
from app.db import results, tables, tasks
from app.releases import store as releases
from app.releases import trials_store
from app.web.access import Caller, Db
from app.web.fields import MOST, ConsoleLinks, console_path
from app.web.problem import problems


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`release` is the number of a release of the task's project."""

    release: Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class ReplaySide(msgspec.Struct, frozen=True, kw_only=True):
    """The task as it was served, or its replay."""

    release: int | None
    stop_reason: Stop | None
    answer: Json
    score: float | None  #: of the task: the one that counts; of its replay: its check's
    turns: int
    generated_tokens: int


class ReplayTurn(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    observation: str
    calls: tuple[Call, ...]

    @classmethod
    def of(cls, turn: Turn | None) -> Self | None:
        return None if turn is None else cls(text=turn.full_text, observation=turn.observation, calls=turn.calls)


class TurnPair(msgspec.Struct, frozen=True, kw_only=True):
    """The same turn of both; null where one had ended. `same`: the policies wrote the same."""

    same: bool
    task: ReplayTurn | None
    replay: ReplayTurn | None

    @classmethod
    def of(cls, task: Turn | None, replay: Turn | None) -> Self:
        same = task is not None and replay is not None and task.text == replay.text
        return cls(same=same, task=ReplayTurn.of(task), replay=ReplayTurn.of(replay))


class ReplayView(msgspec.Struct, frozen=True, kw_only=True):
    """`replay` is null, and `turns` is empty, until it has ended. `failure` says why it could not go on, such as
    the call that has no recorded answer. `same_changes`: it changed in the APIs exactly what the task changed.
    """

    pending: bool
    failure: str | None
    same_changes: bool | None
    same_answer: bool | None
    task: ReplaySide
    replay: ReplaySide | None
    turns: list[TurnPair]
    links: ConsoleLinks


class ReplayController(Controller):
    path = "/tasks/{task_id:uuid}/replay"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(status_code=202, summary="Do a finished task again", responses=problems(400, 401, 403, 404, 409))
    async def start_replay(
        self, task_id: FromPath[UUID], data: JSONBody[ReplayRequest], session: Db, access: Caller
    ) -> ReplayView:
        """The release gets the task with the same seed, clock and skills. Its calls are answered by those that the
        task made, and none goes out; a call that these cannot answer ends the replay. 404 until the task has
        ended, or once its trajectory was deleted."""
        task = await tasks.get(session, task_id, access.project_id)
        release, replay = await ask_replay(session, task, data.release)
        await session.commit()
        return await view_replay(session, task, release, replay)

    @get(summary="Compare a task with its replay", responses=problems(400, 401, 403, 404))
    async def show_replay(
        self,
        task_id: FromPath[UUID],
        session: Db,
        access: Caller,
        release: Annotated[int, QueryParameter(ge=1, le=MOST, description="the number of the release")],
    ) -> ReplayView:
        """Turn by turn. 404 if the release was not asked to replay it."""
        task = await tasks.get(session, task_id, access.project_id)
        by = await releases.numbered(session, task.project_id, release)
        replay = await trials_store.replay(session, by.id, task.id)
        if replay is None:
            raise NotFoundError(f"release {release} has not replayed the task: POST /v1/tasks/{task_id}/replay")
        return await view_replay(session, task, by, replay)


async def ask_replay(
    session: AsyncSession, task: tables.Task, number: int
) -> tuple[tables.Release, tables.Shadow]:
    """Have the release of that number do the task again. The caller commits.

    Raises ConflictError for a task without a model, NotFoundError until the task has ended.
    """
    if task.skill_run is not None:
        raise ConflictError("the task ran a skill, without a model: no release would do it otherwise")
    await results.of_task(session, task.id)
    release = await releases.numbered(session, task.project_id, number)
    return release, await trials_store.add_replay(session, release.id, task.id)


async def view_replay(
    session: AsyncSession, task: tables.Task, release: tables.Release, replay: tables.Shadow
) -> ReplayView:
    """Raises NotFoundError if the trajectory of the task was deleted."""
    served = await results.of_task(session, task.id)
    return _view(task, served, await _served_by(session, task), release, replay)


async def _served_by(session: AsyncSession, task: tables.Task) -> int | None:
    return (await releases.get(session, task.release_id)).number if task.release_id else None


def _view(
    task: tables.Task, served: Trajectory, served_by: int | None, release: tables.Release, replay: tables.Shadow
) -> ReplayView:
    again = None if replay.record is None else msgspec.msgpack.decode(replay.record, type=Trajectory)
    return ReplayView(
        pending=replay.finished_at is None,
        failure=replay.failure,
        same_changes=replay.same_changes,
        same_answer=None if again is None else again.answer == served.answer,
        task=_side(served, served_by, task.score),
        replay=None if again is None else _side(again, release.number, replay.score),
        turns=[] if again is None else [TurnPair.of(*pair) for pair in zip_longest(served.turns, again.turns)],
        links=ConsoleLinks(f"{console_path('tasks', task.id)}/replay?release={release.number}"),
    )


def _side(trajectory: Trajectory, release: int | None, score: float | None) -> ReplaySide:
    return ReplaySide(
        release=release,
        stop_reason=trajectory.stop,
        answer=trajectory.answer,
        score=score,
        turns=len(trajectory.turns),
        generated_tokens=trajectory.generated_tokens,
    )
