"""Tables of tasks, their trajectories and people's scores of them."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, SmallInteger, UniqueConstraint, false, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity, Leased, listing_indexes
from app.project.score_source import ScoreSource
from app.records import Stop

_COUNTED = [
    "id",
    "state",
    "scenario",
    "release_id",
    "score",
    "turns",
    "generated_tokens",
    "started_at",
    "stop",
    "reads_only",
    "repairs",
]  # by `statistics`, `task_outcomes` and `skill_savings`


class TaskState(StrEnum):
    ACCEPTED = "accepted"
    RUNNING = "running"
    WAITING = "waiting"  # for a person's approval of a call; nothing of it runs
    DONE = "done"  # the rollout ended; `stop` is the reason
    FAILED = "failed"  # it could not be executed, or nothing was done; `failure` is the reason
    CANCELLED = "cancelled"


class Exploration(StrEnum):
    """Whether a task is sampled at temperature 1, for runs to learn from, and what it may call then."""

    NO = "no"
    READS = "reads"  # what changes nothing, and operations that are opened to exploration
    WRITES = "writes"  # all that tasks may, but operations that are closed to it
    STOPPED = "stopped"  # it explored, wanted more, and began again without


TASK_MOVES = {
    TaskState.ACCEPTED: {TaskState.RUNNING, TaskState.CANCELLED},
    TaskState.RUNNING: {TaskState.WAITING, TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED},
    TaskState.WAITING: {TaskState.RUNNING, TaskState.CANCELLED},
    TaskState.DONE: set[TaskState](),  # but a task with a call in doubt is taken back to RUNNING: see `doubts`
    TaskState.FAILED: set[TaskState](),
    TaskState.CANCELLED: set[TaskState](),
}
TASK_END_STATES = {state for state, moves in TASK_MOVES.items() if not moves}


class Task(Entity, Leased):
    """A submitted task. The accepted rows are the queue."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("project_id", "idempotency_key"),
        Index("ix_tasks_queue", "created_at", postgresql_where=text("state IN ('accepted', 'running')")),
        Index(
            "ix_tasks_waiting",
            "project_id",
            text("priority DESC"),
            "created_at",
            "id",
            postgresql_where=text("state = 'accepted'"),
        ),
        Index("ix_tasks_running", "project_id", "lease_until", postgresql_where=text("state = 'running'")),
        *listing_indexes("tasks"),
        *listing_indexes("tasks", "state"),
        *listing_indexes("tasks", "stop", sparse=True),
        *listing_indexes("tasks", "scenario", sparse=True),
        Index(
            "ix_tasks_finished",
            "project_id",
            "finished_at",
            postgresql_include=_COUNTED,
            postgresql_where=text("finished_at IS NOT NULL"),
        ),
        Index("ix_tasks_skill_runs", "project_id", "id", postgresql_where=text("skill_run IS NOT NULL")),
        Index("ix_tasks_release", "release_id", "started_at"),
        listing_indexes("tasks", "release_id", sparse=True)[1],
        Index("ix_tasks_rerun_of", "rerun_of", postgresql_where=text("rerun_of IS NOT NULL")),
        Index("ix_tasks_repairs", "project_id", "created_at", postgresql_where=text("repairs IS NOT NULL")),
        Index("ix_tasks_principal", "project_id", "principal"),
        Index(
            "ix_tasks_scored",
            "project_id",
            "score",
            postgresql_include=["score_source"],  # schedules count without a judge's
            postgresql_where=text("score IS NOT NULL"),
        ),
        Index("ix_tasks_score", "score", postgresql_where=text("score IS NOT NULL")),
        Index(
            "ix_tasks_contradicted",
            "project_id",
            "created_at",
            "id",
            postgresql_where=text("highest_score IS NOT NULL"),
        ),
        Index("ix_tasks_judged", "project_id", "judged_by", postgresql_where=text("judged_by IS NOT NULL")),
        Index("ix_tasks_suspects", "lease_until", postgresql_where=text("deaths > 0 AND state = 'running'")),
        CheckConstraint("score BETWEEN 0 AND 1", name="score"),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id"))  # pinned when it is first claimed
    pinned: Mapped[bool] = mapped_column(
        default=False, server_default=false()
    )  # its release, or its code, was chosen by its submitter: it is not compared with others
    rerun_of: Mapped[UUID | None] = mapped_column(ForeignKey("tasks.id", ondelete="SET NULL"))
    # a skill that an API change broke; the task only reads, also once that skill is erased: no foreign key
    repairs: Mapped[UUID | None]
    reads_only: Mapped[bool] = mapped_column(default=False, server_default=false())  # as an expert's does
    key_id: Mapped[UUID | None]  # that submitted it; NULL for the server's own. Keys may go: no foreign key
    principal: Mapped[str] = mapped_column(default="", server_default="")  # on whose behalf it is carried out
    priority: Mapped[int] = mapped_column(SmallInteger, default=0, server_default="0")  # higher goes first
    instruction: Mapped[str]
    conversation: Mapped[str] = mapped_column(default="", server_default="")  # what was said before
    scenario: Mapped[str | None]
    variables: Mapped[dict[str, Any]] = mapped_column(default=dict)  # of the documents' server URLs
    use_skills: Mapped[bool] = mapped_column(default=True)
    exploration: Mapped[Exploration | None]  # NULL: it was not chosen, or not yet
    check_code: Mapped[str | None]  # Python that scores the finished task
    skill_run: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB(none_as_null=True)
    )  # `records.SkillRun`; NULL: the policy works on the instruction
    idempotency_key: Mapped[str | None]
    request_digest: Mapped[str | None]  # of the submission, to distinguish a repetition from a conflict
    state: Mapped[TaskState] = mapped_column(default=TaskState.ACCEPTED)
    stop: Mapped[Stop | None]
    answer: Mapped[Any] = mapped_column(JSONB(none_as_null=True), nullable=True)
    failure: Mapped[str | None]
    score: Mapped[float | None]  # in [0, 1]: of the latest feedback, or without any of the next source
    score_source: Mapped[ScoreSource | None]
    scored_by: Mapped[UUID | None]  # the key over which a person's score came; NULL: at the console, by a link
    checked: Mapped[bool] = mapped_column(default=False)  # it had a score of its check or a judge when it ended
    overruled_score: Mapped[float | None]  # the first score that a source that counts for more has replaced
    lowest_score: Mapped[float | None]  # of all that were given; NULL, as the highest: at most one was
    highest_score: Mapped[float | None]
    judged_by: Mapped[str | None]  # the judge whose score it is, or the overruled one
    turns: Mapped[int] = mapped_column(default=0)
    generated_tokens: Mapped[int] = mapped_column(default=0)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")  # of all its prompts
    cost: Mapped[float | None]  # of its hosted model, in the unit of the prices; NULL where these are unknown
    calls: Mapped[int] = mapped_column(default=0)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    deaths: Mapped[int] = mapped_column(default=0, server_default="0")  # of runners that had it
    lone_deaths: Mapped[int] = mapped_column(default=0, server_default="0")  # in a row, of those without another
    lone_kills: Mapped[int] = mapped_column(
        default=0, server_default="0"
    )  # of these, by what was outside, or unknown
    sandbox_failures: Mapped[int] = mapped_column(default=0, server_default="0")  # for which it was postponed
    broken_answers: Mapped[int] = mapped_column(default=0, server_default="0")  # after which it was postponed
    alone: Mapped[bool] = mapped_column(default=False, server_default=false())  # its latest runner had no other
    prompt: Mapped[str | None]  # hash of the prompt that it began under
    started_at: Mapped[datetime | None]  # of the first attempt; also the clock the sandbox shows


class Trajectory(Entity):
    """The trajectory of a task, as msgpack of `records.Trajectory`; columns repeat only what is queried."""

    __tablename__ = "trajectories"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), unique=True)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id"))
    record: Mapped[bytes]


class Feedback(Entity):
    """A person's score of a task."""

    __tablename__ = "feedback"
    __table_args__ = (CheckConstraint("score BETWEEN 0 AND 1", name="score"),)

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    score: Mapped[float]
    comment: Mapped[str | None]
    author: Mapped[str | None]  # "key <name>"; NULL before this was recorded
    turn: Mapped[int | None]  # that it is about, counted from 0; NULL: the whole task
    lowest: Mapped[float] = mapped_column(default=0.0)  # of the scale that the score was given on
    highest: Mapped[float] = mapped_column(default=1.0)
