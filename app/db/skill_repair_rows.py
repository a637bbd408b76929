"""The table of skills that a changed API document may have broken, and of what was done about each."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import ForeignKey, Index, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Entity, Leased
from app.db.skill_rows import SkillState


class RepairOutcome(StrEnum):
    RESTORED = "restored"  # to its state from before the change
    REPAIRED = "repaired"  # another skill does its work with the changed API
    RETIRED = "retired"  # what was tried did not help, or nothing could be tried
    LEFT = "left"  # where it is: in quarantine, or where somebody else moved it meanwhile


class SkillRepair(Entity, Leased):
    """A skill that was quarantined for a change. Unfinished rows are a queue; a skill has one at a time."""

    __tablename__ = "skill_repairs"
    __table_args__ = (
        UniqueConstraint("skill_id", "change_id"),
        Index("ix_skill_repairs_queue", "next_at", postgresql_where=text("finished_at IS NULL")),
        Index("ix_skill_repairs_change_id", "change_id"),
    )

    skill_id: Mapped[UUID] = mapped_column(ForeignKey("skills.id", ondelete="CASCADE"))
    change_id: Mapped[UUID] = mapped_column(ForeignKey("api_changes.id", ondelete="CASCADE"))
    was: Mapped[SkillState]  # its state before the change
    fits: Mapped[bool]  # its manifest fits the new document, as far as that shows
    tested: Mapped[bool] = mapped_column(default=False)  # on recorded calls, or there were none
    tries: Mapped[int] = mapped_column(default=0)  # tasks that were to repair it
    task_id: Mapped[UUID | None] = mapped_column(
        ForeignKey("tasks.id", ondelete="SET NULL"), index=True
    )  # the latest
    tried: Mapped[list[str]] = mapped_column(default=list)  # what was done, in words
    outcome: Mapped[RepairOutcome | None]
    next_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())  # when to go on
