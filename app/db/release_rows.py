"""Tables of releases: their contents, audit log and shadows."""

from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, UniqueConstraint, Uuid, case, cast, func, select, text
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.orm import Mapped, column_property, mapped_column

from app.db.base import Base, Entity, Leased, listing_indexes
from app.db.hosted_model_rows import HostedModel
from app.records import HOSTED


class ReleaseState(StrEnum):
    CANDIDATE = "candidate"
    PASSED = "passed"  # the gate is for it; it serves once the model servers have proven that they have it
    CANARY = "canary"  # serves a share of the new tasks
    ACTIVE = "active"
    REJECTED = "rejected"
    RETIRED = "retired"


_S = ReleaseState
RELEASE_MOVES = {
    _S.CANDIDATE: {_S.PASSED, _S.CANARY, _S.ACTIVE, _S.REJECTED},
    _S.PASSED: {_S.CANDIDATE, _S.CANARY, _S.ACTIVE, _S.REJECTED},
    _S.CANARY: {_S.CANDIDATE, _S.ACTIVE, _S.REJECTED},
    _S.ACTIVE: {_S.RETIRED},
    _S.REJECTED: {_S.CANARY, _S.ACTIVE},  # only by hand
    _S.RETIRED: {_S.CANARY, _S.ACTIVE, _S.REJECTED},  # a roll-back, or being rolled back by a watch
}


class Release(Entity):
    """Weights, skills, tools and prompt that serve as a unit. A rollout keeps the release it began with.

    `skills` are those when it last stopped serving, for a roll-back; while it serves, the library changes.
    `tools` and `prompt` are those it serves with. NULL in a release that never served.
    """

    __tablename__ = "releases"
    __table_args__ = (
        UniqueConstraint("project_id", "number"),
        CheckConstraint("canary_percent > 0 AND canary_percent <= 100", name="canary_percent"),
        Index("uq_releases_one_active", "project_id", unique=True, postgresql_where=text("state = 'active'")),
        Index("uq_releases_one_canary", "project_id", unique=True, postgresql_where=text("state = 'canary'")),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[ReleaseState] = mapped_column(default=ReleaseState.CANDIDATE)
    model: Mapped[str] = mapped_column(default="base")  # as in `records.Policy`
    hosted: Mapped[str | None] = column_property(  # the name of its hosted model
        select(HostedModel.name)
        .where(
            HostedModel.id
            == cast(case((func.starts_with(model, HOSTED), func.substr(model, len(HOSTED) + 1))), Uuid)
        )
        .correlate_except(HostedModel)
        .scalar_subquery()
    )
    removed_model: Mapped[str | None]  # the name that its hosted model had until it was removed
    skills: Mapped[str | None] = mapped_column(ForeignKey("skill_sets.hash"), index=True)
    tools: Mapped[str | None] = mapped_column(ForeignKey("tool_sets.hash"), index=True)
    prompt: Mapped[str | None]  # hash of the templates that the policy reads
    training_run_id: Mapped[UUID | None] = mapped_column(  # that made it
        ForeignKey("training_runs.id", ondelete="SET NULL"), index=True
    )
    evidence: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))  # the gate's figures
    canary_percent: Mapped[float | None]  # of the new tasks, while it is a canary or once the gate passed it
    canary_at: Mapped[datetime | None]  # it last began to be one
    canary_shares: Mapped[list[Any] | None] = mapped_column(
        JSONB(none_as_null=True)
    )  # its shares since, with times
    activated_at: Mapped[datetime | None]  # the last time
    watched_against: Mapped[UUID | None]  # while it is watched: the release that its weights replaced
    watched_since: Mapped[datetime | None]  # when they did, in this release or an earlier one

    @property
    def policy(self) -> str:
        """As people know its model: by the name of a hosted one."""
        return self.hosted or (f"{self.removed_model} (removed)" if self.removed_model else self.model)


class SkillSet(Base):
    """A set of skills, by the hash of their ids. Never changes."""

    __tablename__ = "skill_sets"

    hash: Mapped[str] = mapped_column(primary_key=True)
    skills: Mapped[list[str]]  # sorted; each an id, followed by the state of a skill that was not active


class ToolSet(Base):
    """A set of API documents and how they are presented, by the hash of both. Never changes."""

    __tablename__ = "tool_sets"

    hash: Mapped[str] = mapped_column(primary_key=True)
    documents: Mapped[dict[str, Any]]  # name of the API -> digest of its document
    presentations: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # of those with one


class ToolDocument(Base):
    """An OpenAPI document of a tool set."""

    __tablename__ = "tool_documents"

    digest: Mapped[str] = mapped_column(primary_key=True)
    document: Mapped[dict[str, Any]] = mapped_column(JSON)  # not JSONB, which forgets the order of arguments


class PromptText(Base):
    """What a policy read around its tasks, by the hash that its releases have. Never changes."""

    __tablename__ = "prompt_texts"

    hash: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]


class AuditAction(StrEnum):
    ACTIVATED = "activated"  # `detail` has the swap report: hashes, differences of logprobs, seconds per replica
    REFUSED = "refused"  # the model servers do not serve it as it was trained; nothing changed
    RESTORED = "restored"  # a model server that was out, or restarted, loaded it and has proven it
    CANARY_BEGAN = "canary began"
    CANARY_RAISED = "canary raised"  # it serves more of the new tasks
    CANARY_ENDED = "canary ended"
    WATCH_ENDED = "watch ended"  # `detail` has the metrics: the release was kept, or rolled back
    APPROVAL_DECIDED = "approval decided"  # about an API call of a task
    CALL_SETTLED = "call settled"  # of a task: whether it arrived
    SECRET_STORED = "secret stored"  # `detail` has its name
    SECRET_DELETED = "secret deleted"
    SECRETS_ROTATED = "secrets rotated"  # encrypted with another key; `detail` has its id, and how many were
    SETTINGS_CHANGED = "settings changed"  # of the project; `detail` has those before and after
    TASKS_ERASED = "tasks erased"  # `detail` has numbers and ids
    PROJECT_CREATED = "project created"
    PROJECT_DELETED = "project deleted"  # `detail` has what its deletion removed with it
    API_CHANGED = "api changed"  # or added; `detail` has what it was before and after, without secrets
    API_DELETED = "api deleted"
    OPERATION_CHANGED = "operation changed"  # of an API: `detail` has its name, and what was set before and after
    KEY_CREATED = "key created"  # `detail` has its id, name, prefix and scopes
    KEY_REVOKED = "key revoked"
    HOSTED_ADDED = "model added"  # a hosted one; `detail` has it, without its key
    HOSTED_CHANGED = "model changed"  # `detail` has it before and after
    HOSTED_REMOVED = "model removed"
    RELEASE_PROPOSED = "release proposed"  # of an adapter or a hosted model
    RUN_QUEUED = "run queued"
    RUN_RETRIED = "run retried"
    RUN_CANCELLED = "run cancelled"
    SCHEDULE_CHANGED = "schedule changed"
    SCHEDULE_DELETED = "schedule deleted"
    DATASET_STORED = "dataset stored"
    DATASET_DELETED = "dataset deleted"
    EXAM_STORED = "exam stored"
    EXAM_DELETED = "exam deleted"  # in all versions
    FEEDBACK_GIVEN = "feedback given"  # `detail` has the task and the score
    SKILL_REPAIR = "skill repair"  # a task is to write it anew; `detail` has both
    SKILL_MOVED = "skill moved"  # to another state; `detail` has both, the reason and the evidence


class AuditEntry(Entity):
    """A change of what serves: actor, action and details. Entries are only added, and outlive their project."""

    __tablename__ = "audit_entries"
    __table_args__ = (
        *listing_indexes("audit_entries"),
        Index("ix_audit_entries_release", "release_id", "created_at", "id"),
    )

    project_id: Mapped[UUID | None]  # which may be gone; NULL: it concerns all projects
    project: Mapped[str | None]  # its name at that time
    release_id: Mapped[UUID | None] = mapped_column(ForeignKey("releases.id", ondelete="SET NULL"))
    actor: Mapped[str]  # "key <name>", "gate", "canary", "watch" or "server"
    action: Mapped[AuditAction]
    detail: Mapped[dict[str, Any]]


class Shadow(Leased):
    """A finished task done again by a release, without side effects. Unfinished rows are a queue.

    A `recorded` one is a replay: its calls are answered by those of the task.
    """

    __tablename__ = "shadows"
    __table_args__ = (Index("ix_shadows_queue", "created_at", postgresql_where=text("finished_at IS NULL")),)

    release_id: Mapped[UUID] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True, index=True)
    recorded: Mapped[bool] = mapped_column(primary_key=True, default=False)
    score: Mapped[float | None]  # the check's
    stop: Mapped[str | None]
    failure: Mapped[str | None]
    turns: Mapped[int] = mapped_column(default=0)
    generated_tokens: Mapped[int] = mapped_column(default=0)
    same_changes: Mapped[bool | None]  # of a replay: whether it made the changes that the task made
    record: Mapped[bytes | None]  # of a replay: its trajectory, as msgpack of `records.Trajectory`
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
