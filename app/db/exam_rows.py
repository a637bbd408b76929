"""Tables of exams."""

from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Entity


class ExamSource(StrEnum):
    SUBMITTED = "submitted"  # its tasks came with the request
    LOG = "log"  # chosen from the tasks that were served
    HOLDOUT = "holdout"  # kept back by the project's setting `holdout_percent`


class Exam(Entity):
    """One version of a named set of tasks. It never changes, but a task of the log that is deleted is gone."""

    __tablename__ = "exams"
    __table_args__ = (UniqueConstraint("project_id", "name", "version"),)

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    version: Mapped[int]  # from 1 for each name
    digest: Mapped[str]  # sha256 of its tasks, hex
    source: Mapped[ExamSource]


class PlacedTask(Base):
    """The kind of a scored task without a scenario. It stays what it was when the task was placed, whatever
    becomes of the tasks that it is like.
    """

    __tablename__ = "placed_tasks"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    kind: Mapped[str]


class ExamTask(Base):
    """A task of an exam."""

    __tablename__ = "exam_tasks"

    exam_id: Mapped[UUID] = mapped_column(ForeignKey("exams.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    instruction: Mapped[str]
    scenario: Mapped[str | None]
    variables: Mapped[dict[str, Any]]
    check_code: Mapped[str | None]
    task_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("tasks.id", ondelete="CASCADE"), index=True
    )  # in the log
