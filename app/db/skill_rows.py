"""Tables of skills: their versions, offers and replays."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Index, UniqueConstraint, false, func, literal_column, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from app.db.base import Base, Entity, listing_indexes


class SkillState(StrEnum):
    QUARANTINED = "quarantined"  # offered only to tasks of its principal, or to nobody while it is held
    PROBATION = "probation"  # offered to all, or to its principal's tasks while another version serves the others
    ACTIVE = "active"
    SUPERSEDED = "superseded"  # replaced by another version of the name, or removed by a rollback
    RETIRED = "retired"  # taken out by hand or with a rejected release, can be restored
    DELETED = "deleted"  # its source is gone; the row stays for what refers to it


_S = SkillState
LIVE_SKILLS = (_S.QUARANTINED, _S.PROBATION, _S.ACTIVE)
_OUT = {_S.SUPERSEDED, _S.RETIRED, _S.DELETED}
SKILL_MOVES = {
    _S.QUARANTINED: {_S.QUARANTINED, _S.PROBATION, *_OUT},  # again, after another violation
    _S.PROBATION: {_S.QUARANTINED, _S.ACTIVE, *_OUT},
    _S.ACTIVE: {_S.QUARANTINED, _S.PROBATION, *_OUT},
    _S.SUPERSEDED: {*LIVE_SKILLS, _S.DELETED},  # a rollback restores the state of its time
    _S.RETIRED: {*LIVE_SKILLS, _S.DELETED},
    _S.DELETED: set[SkillState](),
}
NEXT_SKILL_STATE = {_S.QUARANTINED: _S.PROBATION, _S.PROBATION: _S.ACTIVE}  # once it is earned or approved


class Skill(Entity):
    """A function that the agent wrote and that passed its checks. Never edited: a change is a new version."""

    __tablename__ = "skills"
    __table_args__ = (
        UniqueConstraint("project_id", "name", "version"),
        *listing_indexes("skills"),
        *listing_indexes("skills", "state"),
        *listing_indexes("skills", "scenario", sparse=True),
        Index("ix_skills_newest_principal", "principal", "created_at", "id"),
        Index("ix_skills_newest_name", "name", "created_at", "id"),
        Index("ix_skills_api_terms", func.skill_api_terms(literal_column("apis")), postgresql_using="gin"),
        Index("ix_skills_rev", "project_id", "rev"),
        Index("ix_skills_embedder", "state", "embedder"),
        Index("ix_skills_release", "release_id"),
        Index(
            "uq_skills_one_active_version",
            "project_id",
            "name",
            unique=True,
            postgresql_where=text("state = 'active'"),
        ),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    version: Mapped[int]
    state: Mapped[SkillState] = mapped_column(default=SkillState.ACTIVE)
    signature: Mapped[str]
    source: Mapped[str]
    apis: Mapped[list[str]]  # "app.operation" it called when it was validated: all it may ever call
    instruction: Mapped[str]
    described: Mapped[bool] = mapped_column(default=False, server_default=false())  # `instruction` describes it
    slots: Mapped[list[str]] = mapped_column(default=list)  # its words that were arguments: a search skips them
    scenario: Mapped[str | None]
    task_id: Mapped[UUID | None] = mapped_column(  # that made it
        ForeignKey("tasks.id", ondelete="SET NULL"), index=True
    )
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id"))
    principal: Mapped[str] = mapped_column(default="", server_default="")  # whose task made it
    taint: Mapped[str] = mapped_column(default="", server_default="")  # the text from outside it may stem from
    manifest: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # NULL: `apis`
    former: Mapped[SkillState | None]  # the live state that it left; NULL: none, or active in an earlier version
    held: Mapped[bool] = mapped_column(default=False, server_default=false())  # offered to nobody until approved
    violations: Mapped[int] = mapped_column(default=0, server_default="0")  # calls beyond its manifest
    reason: Mapped[str] = mapped_column(default="", server_default="")  # for its state
    moved_by: Mapped[str] = mapped_column(default="", server_default="")  # the actor who gave it its state
    embedder: Mapped[str | None]  # the model of both vectors; NULL until it is asked for them
    query_vector: Mapped[bytes | None]  # of the instruction, float32; NULL also if it refuses the text
    source_vector: Mapped[bytes | None]
    rev: Mapped[int] = mapped_column(BigInteger)


class SkillOffer(Base):
    """A skill that a task was offered, and its use: an edge from the task that wrote it."""

    __tablename__ = "skill_offers"
    __table_args__ = (
        Index("ix_skill_offers_latest", "skill_id", "created_at"),
        Index("ix_skill_offers_used", "skill_id", "created_at", postgresql_where=text("calls > 0")),
    )

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    skill_id: Mapped[UUID] = mapped_column(ForeignKey("skills.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int]
    ranks: Mapped[dict[str, Any]]
    calls: Mapped[int] = mapped_column(default=0)
    returned: Mapped[int] = mapped_column(default=0)  # calls that returned without raising
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class WithheldSkill(Base):
    """A skill that a task would have been offered, had it not been chosen to do without."""

    __tablename__ = "withheld_skills"
    __table_args__ = (Index("ix_withheld_skills_latest", "skill_id", "created_at"),)

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    skill_id: Mapped[UUID] = mapped_column(ForeignKey("skills.id", ondelete="CASCADE"), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())


class TaskSelection(Base):
    """The skills that were found for a task, and why each was offered to it or not."""

    __tablename__ = "task_selections"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    record: Mapped[dict[str, Any]]  # `records.Selection`


class SkillReplay(Base):
    """A skill run again on the recorded calls of a task."""

    __tablename__ = "skill_replays"

    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True)
    skill_id: Mapped[UUID] = mapped_column(
        ForeignKey("skills.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    matched: Mapped[bool]  # it made the same calls and returned
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
