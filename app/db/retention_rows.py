"""Tables about what was deleted, and what was learned from it."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class RetentionKind(StrEnum):
    EVENTS = "events"
    TRAJECTORIES = "trajectories"
    TASKS = "tasks"


class RetentionMark(Base):
    """Up to when a project's rows were deleted: none is looked for twice."""

    __tablename__ = "retention_marks"

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[RetentionKind] = mapped_column(primary_key=True)
    until: Mapped[datetime]  # tasks that ended up to this time, inclusive


class RunTask(Base):
    """A served task that a training run learned from."""

    __tablename__ = "run_tasks"

    run_id: Mapped[UUID] = mapped_column(ForeignKey("training_runs.id", ondelete="CASCADE"), primary_key=True)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True)
