"""The table of API calls that wait, or waited, for a person."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity, listing_indexes


class ApprovalState(StrEnum):
    WAITING = "waiting"  # and its task with it
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"  # nobody decided in time
    WITHDRAWN = "withdrawn"  # its task was cancelled


class Approval(Entity):
    """One API call of a task, and the decision about it."""

    __tablename__ = "approvals"
    __table_args__ = (
        *listing_indexes("approvals"),
        *listing_indexes("approvals", "state"),
        Index("ix_approvals_due", "expires_at", postgresql_where=text("state = 'waiting'")),
        Index("uq_approvals_one_waiting", "task_id", unique=True, postgresql_where=text("state = 'waiting'")),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    seq: Mapped[int]  # of the call
    turn: Mapped[int]
    api: Mapped[str]  # "app.operation"
    arguments: Mapped[dict[str, Any]]  # masked
    shown: Mapped[str | None]  # the `ShownCall` that a person decides by, encrypted; null once somebody has
    digest: Mapped[str]  # of the exact arguments; "" once the task has ended
    state: Mapped[ApprovalState] = mapped_column(default=ApprovalState.WAITING)
    expires_at: Mapped[datetime]
    decided_at: Mapped[datetime | None]
    decided_by: Mapped[str | None]  # "key <name>" or "server"
    reason: Mapped[str] = mapped_column(default="")  # that the agent reads if it was refused
