"""The table that a search for words in tasks reads."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base


class TaskWords(Base):
    """The words of a task's instruction. Apart from the task, because its row changes often, and they never do."""

    __tablename__ = "task_words"
    __table_args__ = (
        Index("ix_task_words_words", "words", postgresql_using="gin"),
        Index("ix_task_words_listing", "project_id", "created_at", "task_id"),
        Index("ix_task_words_newest", "created_at", "task_id"),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    project_id: Mapped[UUID]
    created_at: Mapped[datetime]
    words: Mapped[Any] = mapped_column(TSVECTOR)
