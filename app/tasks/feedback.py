"""Routes for feedback on the results of tasks."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.params import FromQuery, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import feedback, tables, tasks, unscored_tasks
from app.db.unscored_tasks import UnscoredTask
from app.project.wanted_feedback import KindScores, Unscored, choose
from app.projects import audit, keys
from app.projects.authorization import find_project
from app.projects.settings import kind_of
from app.releases import trials_store
from app.skills import admission
from app.web.access import Access, Caller, Db
from app.web.fields import ConsoleLinks, Limit, ProjectName, columns, console_path
from app.web.problem import problems

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
    comment: Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$")] | None = None
    scale: ScoreScale = ScoreScale()
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

    @classmethod
    def of(cls, task: UnscoredTask, scores: KindScores, answer: Json) -> Self:
        return cls(
            task_id=task.id,
            instruction=task.instruction,
            answer=answer,
            scenario=task.scenario,
            finished_at=task.finished_at,
            release=task.release,
            on_trial=task.on_trial,
            scores=scores.count,
            mean=scores.total / scores.count if scores.count else None,
            links=ConsoleLinks(f"{console_path('tasks', task.id)}#feedback"),
        )


class FeedbackController(Controller):
    path = "/feedback"
    tags = ("Feedback",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(summary="Score a task", responses=problems(400, 401, 403, 404, 409))
    async def give(self, data: JSONBody[FeedbackRequest], session: Db, access: Caller) -> FeedbackView:
        """Becomes the task's score, also in place of a check's, verifier's or judge's, which the task then shows
        as `overruled_score`, and evidence about the skills of the task: a good score counts for a skill only if
        another key submitted the task that wrote it. 409 if the task has not ended.
        """
        row = await give_feedback(session, access, data)
        await session.commit()
        return FeedbackView.of(row)

    @get("/wanted", summary="List the tasks whose score would teach most", responses=problems(400, 401, 403, 404))
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

    @get(summary="List the feedback on a task", responses=problems(400, 401, 403, 404))
    async def index(self, task_id: FromQuery[UUID], session: Db, access: Caller) -> list[FeedbackView]:
        """Oldest first."""
        task = await tasks.get(session, task_id, access.project_id)
        return [FeedbackView.of(row) for row in await feedback.of_task(session, task.id)]


async def give_feedback(
    session: AsyncSession, access: Access, data: FeedbackRequest, console: str | None = None
) -> tables.Feedback:
    """Score a task, and judge its skills by it. The caller commits.

    `console` is the secret of a session there. Its score is a person's only if a link began it.
    """
    task = await tasks.get(session, data.task_id, access.project_id)
    is_person = console is not None and await keys.is_by_link(session, console)
    scale = data.scale.lowest, data.scale.highest
    row = await feedback.add(
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


async def wanted_feedback(session: AsyncSession, project_id: UUID, limit: int) -> list[WantedFeedback]:
    """The tasks of a project whose score would teach most, best first."""
    trial = await trials_store.current(session, project_id)
    tasks = await unscored_tasks.latest(session, project_id, trial)
    scores = await unscored_tasks.scores_by_kind(session, project_id)
    trials = await unscored_tasks.trials_by_kind(session, project_id, trial)
    unscored = [Unscored(kind_of(task.instruction, task.scenario), task.on_trial) for task in tasks]
    chosen = choose(unscored, scores, trials, limit)
    answers = await unscored_tasks.answers(session, [tasks[place].id for place in chosen])
    return [
        WantedFeedback.of(
            tasks[place], scores.get(unscored[place].kind, KindScores()), answers.get(tasks[place].id)
        )
        for place in chosen
    ]
