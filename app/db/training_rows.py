"""Tables of training: runs, steps, schedules, adapters and evaluations."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, false, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Entity, Leased
from app.run_settings import RunKind


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # `failure` is the reason
    CANCELLED = "cancelled"


RUN_MOVES = {
    RunState.QUEUED: {RunState.RUNNING, RunState.CANCELLED},
    RunState.RUNNING: {RunState.DONE, RunState.FAILED, RunState.CANCELLED, RunState.QUEUED},
    RunState.DONE: set[RunState](),
    RunState.FAILED: {RunState.QUEUED},
    RunState.CANCELLED: {RunState.QUEUED},
}


class Schedule(Entity):
    """A project's training schedule: by hours or by scored tasks, whichever comes first."""

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("every_hours > 0", name="every_hours"),
        CheckConstraint("every_scored_tasks > 0", name="every_scored_tasks"),
        CheckConstraint("num_nonnulls(every_hours, every_scored_tasks) > 0", name="ever"),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), unique=True)
    every_hours: Mapped[float | None]
    every_scored_tasks: Mapped[int | None]
    settings: Mapped[dict[str, Any]]  # of the runs: run_settings.RunSettings
    enabled: Mapped[bool] = mapped_column(default=True)
    next_at: Mapped[datetime | None]  # NULL without every_hours
    scored_seen: Mapped[int] = mapped_column(BigInteger, default=0)  # number of `proven` scores when it last fired
    rev: Mapped[int] = mapped_column(BigInteger, default=0)  # compared and set by whoever fires or edits it
    fired_at: Mapped[datetime | None]


class TrainingRun(Entity, Leased):
    """A training run. Queued rows are the queue; at most one per project is running."""

    __tablename__ = "training_runs"
    __table_args__ = (
        Index("ix_training_runs_listing", "project_id", "created_at", "id"),
        Index("ix_training_runs_listing_state", "project_id", "state", "created_at", "id"),
        Index("ix_training_runs_queue", "created_at", postgresql_where=text("state IN ('queued', 'running')")),
        Index(
            "uq_training_runs_one_running",
            "project_id",
            unique=True,
            postgresql_where=text("state = 'running'"),
        ),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    schedule_id: Mapped[UUID | None] = mapped_column(  # the schedule that queued it
        ForeignKey("schedules.id", ondelete="SET NULL"), index=True
    )
    kind: Mapped[RunKind]
    settings: Mapped[dict[str, Any]]  # run_settings.RunSettings
    state: Mapped[RunState] = mapped_column(default=RunState.QUEUED)
    losses: Mapped[int] = mapped_column(default=0)  # times its process was lost since it last made progress
    lost_at: Mapped[int] = mapped_column(default=0)  # the furthest step at which its process was lost
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    step: Mapped[int] = mapped_column(default=0)  # done so far
    steps: Mapped[int] = mapped_column(default=0)  # in total; 0: not known yet
    part: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # records.RunPart, while it runs
    started_from: Mapped[str | None]  # "base" or an adapter's hash; NULL until it has read what it learns from
    learning_rate: Mapped[float | None]  # in force; NULL until then
    erased: Mapped[bool] = mapped_column(default=False, server_default=false())  # it read a task that is deleted
    failure: Mapped[str | None]  # "InvalidError: what happened, and what to do"
    result: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    started_at: Mapped[datetime | None]  # of the first attempt


class RunStep(Base):
    """The metrics of one step of a run."""

    __tablename__ = "run_steps"

    run_id: Mapped[UUID] = mapped_column(ForeignKey("training_runs.id", ondelete="CASCADE"), primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)  # from 1
    metrics: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class RunLog(Base):
    """The end of the log of a run."""

    __tablename__ = "run_logs"

    run_id: Mapped[UUID] = mapped_column(ForeignKey("training_runs.id", ondelete="CASCADE"), primary_key=True)
    end: Mapped[str]  # at most 64 KiB


class Adapter(Base):
    """LoRA weights in the adapter directory, named by the hash of their content. Never changes."""

    __tablename__ = "adapters"

    hash: Mapped[str] = mapped_column(primary_key=True)
    base: Mapped[str]  # the model it was trained on
    rank: Mapped[int]
    probe: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # records.Probe, by the trainer
    run_id: Mapped[UUID | None] = mapped_column(ForeignKey("training_runs.id", ondelete="SET NULL"), index=True)
    project_id: Mapped[UUID | None]  # that made or added it, even once that is deleted; NULL: all may serve it
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class Evaluation(Entity):
    """An evaluation of a model: its settings and its figures."""

    __tablename__ = "evaluations"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[UUID | None] = mapped_column(ForeignKey("training_runs.id", ondelete="SET NULL"), index=True)
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id", ondelete="SET NULL"), index=True)
    model: Mapped[str]  # "base" or an adapter's hash
    environment: Mapped[str]
    settings: Mapped[dict[str, Any]]  # split, scenarios, seeds, retrieval: what it takes to repeat it
    figures: Mapped[dict[str, Any]]
