"""Scores by people: how one is given and what it is evidence of, and which tasks are most worth one.

A score says more of a kind with few scores than of one with many, and more where success and failure are about
as frequent: such a kind has groups to learn from. Of the tasks of a release that is on trial, it also brings
the decision nearer: the more, the less the scores of the kind say yet about which of the two releases does
better.
"""

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import erfc, sqrt
from typing import Annotated, NamedTuple, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.params import FromQuery, JSONBody
from sqlalchemy import ColumnElement, Row, case, false, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError, NotFoundError
from app.base.fields import Text, columns
from app.base.values import Json, ScoreSource
from app.db import results, tables
from app.db.queries import ago, in_array
from app.db.results import proven
from app.db.tables import TaskState
from app.projects import audit, keys
from app.projects.authorization import find_project
from app.projects.kinds import kind_of
from app.releases import trials_store
from app.releases.trials_store import ReleaseTrial
from app.skills import admission
from app.tasks import store as tasks
from app.web.access import Access, Caller, Db
from app.web.fields import ConsoleLinks, Limit, ProjectName, console_path
from app.web.problem import CHANGE, READ

_WINDOW = timedelta(days=30)
_MOST = 5_000  # tasks without a score that are considered, newest first

_task, _release = tables.Task, tables.Release

Bound = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]


class ScoreScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scores that mean failure and success."""

    lowest: Bound = 0.0
    highest: Bound = 1.0

    def __post_init__(self) -> None:
        if not self.lowest < self.highest:
            raise ValueError("`highest` must be above `lowest`")


class FeedbackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """0 is failed, 1 solved, and from 0.5 on a task counts as solved; or the ends of `scale`, such as
    {"lowest": 1, "highest": 5} for stars. `turn`, counted from 0, is the turn that the comment is about.
    """

    task_id: UUID
    score: Bound
    comment: Annotated[Text, msgspec.Meta(max_length=10_000)] | None = None
    scale: ScoreScale = msgspec.field(default_factory=ScoreScale)  # a default would be that of all who have one
    turn: Annotated[int, msgspec.Meta(ge=0, le=100_000)] | None = None

    def __post_init__(self) -> None:
        if not self.scale.lowest <= self.score <= self.scale.highest:
            raise ValueError(f"`score` must lie between {self.scale.lowest:g} and {self.scale.highest:g}")

    @property
    def fraction(self) -> float:
        """The score in [0, 1]."""
        return (self.score - self.scale.lowest) / (self.scale.highest - self.scale.lowest)


class FeedbackView(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    task_id: UUID
    score: float  #: from 0 to 1, whatever the scale
    comment: str | None
    author: str | None  #: the key that gave it; null if that was not recorded
    turn: int | None
    scale: ScoreScale  #: that it was given on
    created_at: datetime

    @classmethod
    def of(cls, row: tables.Feedback) -> Self:
        return cls(scale=ScoreScale(row.lowest, row.highest), **columns(row, cls, "scale"))


class WantedFeedback(msgspec.Struct, frozen=True, kw_only=True):
    """A task without a score. `scores` and `mean` are of its kind; `on_trial`: its release is a canary, or was
    compared with one when it began, or is watched.
    """

    task_id: UUID
    instruction: str
    answer: Json
    scenario: str | None
    finished_at: datetime
    release: int | None
    on_trial: bool
    scores: int
    mean: float | None
    links: ConsoleLinks


class FeedbackController(Controller):
    path = "/feedback"
    tags = ("Feedback",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(summary="Score a task", responses=CHANGE)
    async def give(self, data: JSONBody[FeedbackRequest], session: Db, access: Caller) -> FeedbackView:
        """Becomes the task's score, also in place of a check's, verifier's or judge's, which the task then shows
        as `overruled_score`, and evidence about the skills of the task: a good score counts for a skill only if
        another key submitted the task that wrote it. 409 if the task has not ended.
        """
        row = await give_feedback(session, access, data)
        await session.commit()
        return FeedbackView.of(row)

    @get("/wanted", summary="List the tasks whose score would teach most", responses=READ)
    async def wanted(
        self, session: Db, access: Caller, project: ProjectName = None, limit: Limit = 20
    ) -> list[WantedFeedback]:
        """Best first, of those that ended without a score in the last 30 days: kinds with few or divided
        scores, kinds that are frequent, and tasks of a release on trial: of a canary and of the one it is
        compared with, or of one that is watched. The latter the more, the less it is known of their kind which of
        the two does better.
        """
        owner = await find_project(session, access, project)
        return await wanted_feedback(session, owner.id, limit)

    @get(summary="List the feedback on a task", responses=READ)
    async def index(self, task_id: FromQuery[UUID], session: Db, access: Caller) -> list[FeedbackView]:
        """Oldest first."""
        task = await tasks.get(session, task_id, access.project_id)
        return [FeedbackView.of(row) for row in await of_task(session, task.id)]


async def give_feedback(
    session: AsyncSession, access: Access, data: FeedbackRequest, console: str | None = None
) -> tables.Feedback:
    """Score a task, and judge its skills by it. The caller commits.

    `console` is the secret of a session there. Its score is a person's only if a link began it.
    """
    task = await tasks.get(session, data.task_id, access.project_id)
    is_person = console is not None and await keys.is_by_link(session, console)
    scale = data.scale.lowest, data.scale.highest
    row = await add(
        session,
        task.id,
        data.fraction,
        data.comment,
        author=access.actor,
        scored_by=None if is_person else access.key_id,
        turn=data.turn,
        scale=scale,
    )
    detail: dict[str, Json] = {"task": str(task.id), "score": row.score, "console": is_person}
    action = tables.AuditAction.FEEDBACK_GIVEN
    await audit.add(session, task.project_id, None, access.actor, action, detail)
    await admission.scored(session, task.id, row.score)
    return row


async def add(  # noqa: PLR0913 - the columns of a row
    session: AsyncSession,
    task_id: UUID,
    score: float,
    comment: str | None = None,
    *,
    author: str | None = None,
    scored_by: UUID | None = None,
    turn: int | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
) -> tables.Feedback:
    """Add feedback. The latest is the task's score; that of another source, which it replaces, is kept.

    `score` lies in [0, 1], whatever the `scale` that it was given on; `turn` is what the comment is about;
    `scored_by` is the key over which it came, None for a person at the console whom a link signed in.
    Raises InvalidError for another score, or a turn that the task did not have, NotFoundError, and ConflictError
    while the task has not ended.
    """
    if not 0 <= score <= 1:
        raise InvalidError(f"score is {score}: it must be between 0 and 1")
    task = await session.get(tables.Task, task_id, with_for_update=True)
    if task is None:
        raise NotFoundError(f"no task has the id {task_id}; GET /v1/tasks lists them")
    if task.finished_at is None:
        raise ConflictError(f"task {task_id} is {task.state}: wait for its end")
    if turn is not None and turn >= task.turns:
        raise InvalidError(f"turn {turn}: the task had {task.turns}, counted from 0")
    row = tables.Feedback(task_id=task_id, score=score, comment=comment, author=author, turn=turn)
    row.lowest, row.highest = scale
    session.add(row)
    results.put(task, score, ScoreSource.PERSON, scored_by=scored_by)
    await session.flush()
    return row


async def of_task(session: AsyncSession, task_id: UUID) -> Sequence[tables.Feedback]:
    """Oldest first."""
    query = select(tables.Feedback).where(tables.Feedback.task_id == task_id).order_by(tables.Feedback.created_at)
    return (await session.scalars(query)).all()


async def wanted_feedback(session: AsyncSession, project_id: UUID, limit: int) -> list[WantedFeedback]:
    """The tasks of a project whose score would teach most, best first."""
    trial = await trials_store.current(session, project_id)
    waiting = await _unscored(session, project_id, trial)
    scores = {kind: found for kind, [found] in (await _by_kind(session, project_id, [true()])).items()}
    trials = await trials_by_kind(session, project_id, trial) if trial else {}
    unscored = [Unscored(kind_of(task.instruction, task.scenario), task.on_trial) for task in waiting]
    chosen = choose(unscored, scores, trials, limit)
    # answers may be large: they are read of tasks that are shown
    query = select(_task.id, _task.answer).where(in_array(_task.id, [waiting[place].task_id for place in chosen]))
    answers = {row.id: row.answer for row in await session.execute(query)}
    found = []
    for place in chosen:
        task, of_kind = waiting[place], scores.get(unscored[place].kind, KindScores())
        mean = of_kind.total / of_kind.count if of_kind.count else None
        links = ConsoleLinks(f"{console_path('tasks', task.task_id)}#feedback")
        about: dict[str, Json] = {
            "answer": answers.get(task.task_id),
            "scores": of_kind.count,
            "mean": mean,
            "links": links,
        }
        found.append(WantedFeedback(**about, **columns(task, WantedFeedback, *about)))
    return found


async def trials_by_kind(session: AsyncSession, project_id: UUID, trial: ReleaseTrial) -> dict[str, "KindTrial"]:
    """The scores of both sides of a trial, of the last 30 days."""
    sides = await _by_kind(session, project_id, [trial.new, trial.old])
    return {kind: KindTrial(*found) for kind, found in sides.items()}


class KindScores(msgspec.Struct, frozen=True):
    """The scores that a kind of tasks has. Its rate of success is estimated from a uniform distribution."""

    count: int = 0
    total: float = 0.0

    @property
    def rate(self) -> float:
        return (1 + self.total) / (2 + self.count)

    @property
    def variance(self) -> float:
        """Of the rate, which has a Beta distribution."""
        return self.rate * (1 - self.rate) / (self.count + 3)

    @property
    def gain(self) -> float:
        """By how much one more score is expected to lower the variance of the kind's rate of success.

        >>> [round(scores.gain, 4) for scores in (KindScores(), KindScores(4, 2.0), KindScores(4, 4.0))]
        [0.0278, 0.0051, 0.0028]
        """
        return self.variance / (self.count + 3)

    def expected(self) -> "KindScores":
        """With one more, of the mean."""
        return KindScores(self.count + 1, self.total + self.rate)


class KindTrial(msgspec.Struct, frozen=True):
    """The scores of a kind under a release that is on trial, and under the one that it is compared with."""

    new: KindScores = KindScores()
    old: KindScores = KindScores()

    @property
    def gain(self) -> float:
        """That of one more score of the new release, by how open it is which of the two does better.

        >>> even, none = KindScores(4, 2.0), KindScores(4, 0.0)
        >>> [round(KindTrial(new, even).gain, 4) for new in (KindScores(), even, none)]
        [0.0278, 0.0051, 0.0004]
        """
        distance = abs(self.new.rate - self.old.rate) / sqrt(self.new.variance + self.old.variance)
        return self.new.gain * erfc(distance / sqrt(2))

    def expected(self) -> "KindTrial":
        return KindTrial(self.new.expected(), self.old)


class Unscored(NamedTuple):
    """A task without a score. A kind's tasks are in the order in which they are to be asked about."""

    kind: str
    on_trial: bool


def choose(
    tasks: Sequence[Unscored], scores: Mapping[str, KindScores], trials: Mapping[str, KindTrial], limit: int
) -> list[int]:
    """The places of the tasks most worth a score, best first.

    Kinds weigh as much as they have tasks here. Each choice counts as scored for the next.
    """
    waiting: dict[tuple[str, bool], list[int]] = {}
    for place, task in enumerate(tasks):
        waiting.setdefault((task.kind, task.on_trial), []).append(place)
    frequency = {kind: sum(len(waiting.get((kind, trial), ())) for trial in (True, False)) for kind, _ in waiting}
    known = {kind: scores.get(kind, KindScores()) for kind in frequency}
    open_trials = {kind: trials.get(kind, KindTrial()) for kind in frequency}

    def entry(group: tuple[str, bool]) -> tuple[float, int, tuple[str, bool]]:
        kind, on_trial = group
        gain = known[kind].gain + (open_trials[kind].gain if on_trial else 0.0)
        return -gain * frequency[kind], waiting[group][0], group

    heap = [entry(group) for group in waiting]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < limit:
        worth, _, group = heapq.heappop(heap)
        fresh = entry(group)
        if fresh[0] > worth:  # a score of the kind was chosen since
            heapq.heappush(heap, fresh)
            continue
        chosen.append(waiting[group].pop(0))
        kind, on_trial = group
        known[kind] = known[kind].expected()
        if on_trial:
            open_trials[kind] = open_trials[kind].expected()
        if waiting[group]:
            heapq.heappush(heap, entry(group))
    return chosen


async def _unscored(
    session: AsyncSession, project_id: UUID, trial: ReleaseTrial | None
) -> Sequence[Row[UUID, str, str | None, datetime | None, int, bool]]:
    """The tasks that ended without a score, or only with a judge's, as in `WantedFeedback`: newest first."""
    on_trial = false() if trial is None else trial.open
    query = (
        select(
            _task.id.label("task_id"),
            _task.instruction,
            _task.scenario,
            _task.finished_at,
            _release.number.label("release"),
            func.coalesce(on_trial, False).label("on_trial"),
        )
        .outerjoin(_release, _release.id == _task.release_id)
        .where(
            _task.project_id == project_id,
            _task.state == TaskState.DONE,
            _task.skill_run.is_(None),
            proven().is_(None),
            _task.finished_at >= ago(_WINDOW.total_seconds()),
        )
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(_MOST)
    )
    return (await session.execute(query)).all()


async def _by_kind(
    session: AsyncSession, project_id: UUID, which: Sequence[ColumnElement[bool]]
) -> dict[str, list[KindScores]]:
    """The scores of the tasks that each condition is true of."""
    total = func.sum(proven())
    figures = [
        each for side in which for each in (func.count().filter(side), func.coalesce(total.filter(side), 0.0))
    ]
    own_instruction = case((_task.scenario.is_(None), _task.instruction), else_="")
    query = (
        select(_task.scenario, own_instruction, *figures)
        .where(
            _task.project_id == project_id,
            proven().is_not(None),
            or_(*which),
            _task.finished_at >= ago(_WINDOW.total_seconds()),
        )
        .group_by(_task.scenario, own_instruction)
    )
    found: dict[str, list[KindScores]] = defaultdict(lambda: [KindScores()] * len(which))
    for scenario, instruction, *numbers in await session.execute(query):
        kind, new = kind_of(instruction, scenario), list(map(KindScores, numbers[::2], numbers[1::2]))
        found[kind] = [
            KindScores(a.count + b.count, a.total + b.total) for a, b in zip(found[kind], new, strict=True)
        ]
    return dict(found)
