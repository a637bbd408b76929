"""The table of tasks that a project's verifier scores, which is also their queue."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Due


class VerificationState(StrEnum):
    PENDING = "pending"
    SCORED = "scored"
    ABSTAINED = "abstained"  # it answered that it cannot score the task
    FAILED = "failed"  # given up; `problem` is the reason


class Verification(Due):
    """The question about one task. `attempt` counts the times it was asked."""

    __tablename__ = "verifications"
    __table_args__ = (
        Index("ix_verifications_queue", "project_id", "next_at", postgresql_where=text("state = 'pending'")),
        Index("ix_verifications_leased", "project_id", postgresql_where=text("owner IS NOT NULL")),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    state: Mapped[VerificationState] = mapped_column(default=VerificationState.PENDING)
    problem: Mapped[str | None]  # of the latest attempt
    reason: Mapped[str | None]  # of the answer
