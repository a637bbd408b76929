"""The schema, together with the tables of the modules `*_rows`.

Every change needs a migration.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    SmallInteger,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.orm import Mapped, mapped_column

from app.db.api_change_rows import ApiChange
from app.db.api_trial_rows import ApiTrial, TrialState
from app.db.approval_rows import Approval, ApprovalState
from app.db.base import Base, Entity
from app.db.credential_rows import ApiCredential, OAuthAttempt
from app.db.dataset_rows import Dataset
from app.db.exam_rows import Exam, ExamSource, ExamTask, PlacedTask
from app.db.hosted_model_rows import HostedModel
from app.db.quota_rows import ProjectTurn, ProjectUsage
from app.db.release_rows import (
    RELEASE_MOVES,
    AuditAction,
    AuditEntry,
    PromptText,
    Release,
    ReleaseState,
    Shadow,
    SkillSet,
    ToolDocument,
    ToolSet,
)
from app.db.retention_rows import RetentionKind, RetentionMark, RunTask
from app.db.search_rows import TaskWords
from app.db.secret_rows import Secret
from app.db.sign_in_rows import SignIn
from app.db.skill_repair_rows import RepairOutcome, SkillRepair
from app.db.skill_rows import (
    LIVE_SKILLS,
    NEXT_SKILL_STATE,
    SKILL_MOVES,
    Skill,
    SkillOffer,
    SkillReplay,
    SkillState,
    TaskSelection,
    WithheldSkill,
)
from app.db.task_journal_rows import TaskCall, TaskEvent, TaskTurn
from app.db.task_rows import TASK_END_STATES, TASK_MOVES, Exploration, Feedback, Task, TaskState, Trajectory
from app.db.training_rows import RUN_MOVES, Adapter, Evaluation, RunLog, RunState, RunStep, Schedule, TrainingRun
from app.db.verification_rows import Verification, VerificationState
from app.db.webhook_rows import DeliveryState, WebhookDelivery
from app.db.worker_rows import RunnerProcess, WorkerEnvironment
from app.project.score_source import ScoreSource

__all__ = [
    "LIVE_SKILLS",
    "NEXT_SKILL_STATE",
    "RELEASE_MOVES",
    "RUN_MOVES",
    "SKILL_MOVES",
    "TASK_END_STATES",
    "TASK_MOVES",
    "Adapter",
    "Api",
    "ApiChange",
    "ApiCredential",
    "ApiTrial",
    "Approval",
    "ApprovalState",
    "AuditAction",
    "AuditEntry",
    "Base",
    "Dataset",
    "DeliveryState",
    "Entity",
    "Evaluation",
    "Exam",
    "ExamSource",
    "ExamTask",
    "Exploration",
    "Feedback",
    "HostedModel",
    "Key",
    "OAuthAttempt",
    "PlacedTask",
    "Project",
    "ProjectTurn",
    "ProjectUsage",
    "PromptText",
    "Release",
    "ReleaseState",
    "RepairOutcome",
    "RetentionKind",
    "RetentionMark",
    "RunLog",
    "RunState",
    "RunStep",
    "RunTask",
    "RunnerProcess",
    "Schedule",
    "ScoreSource",
    "Secret",
    "Shadow",
    "SignIn",
    "Skill",
    "SkillOffer",
    "SkillRepair",
    "SkillReplay",
    "SkillSet",
    "SkillState",
    "Task",
    "TaskCall",
    "TaskEvent",
    "TaskSelection",
    "TaskState",
    "TaskTurn",
    "TaskWords",
    "ToolDocument",
    "ToolSet",
    "TrainingRun",
    "Trajectory",
    "TrialState",
    "Verification",
    "VerificationState",
    "WebhookDelivery",
    "WithheldSkill",
    "WorkerEnvironment",
]


class Project(Entity):
    """The unit of isolation: APIs, skills, tasks, trajectories, releases and keys belong to one project."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(unique=True)
    skill_rev: Mapped[int] = mapped_column(BigInteger, default=0)  # every write to a skill takes the next number
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # ProjectSettings
    webhook_secret: Mapped[str | None]  # encrypted
    verifier_secret: Mapped[str | None]  # encrypted


class Key(Entity):
    """An API key. Only its hash is stored. Without a project it is valid for all."""

    __tablename__ = "keys"

    name: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)  # sha256, hex
    hint: Mapped[str]  # the first characters, for people
    scopes: Mapped[list[str]]
    project_id: Mapped[UUID | None] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    revoked_at: Mapped[datetime | None]


class Api(Entity):
    """An API document of a project. The gateway adds its static bearer token."""

    __tablename__ = "apis"
    __table_args__ = (
        UniqueConstraint("project_id", "name"),
        Index("ix_apis_refresh", "refresh_at", postgresql_where=text("refresh_at IS NOT NULL")),
    )

    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id", ondelete="CASCADE"))
    name: Mapped[str]
    source: Mapped[str]  # the URL it came from, or "upload"
    server: Mapped[str | None]  # overrides the document's server
    document: Mapped[dict[str, Any]] = mapped_column(JSON)  # not JSONB, which forgets the order of arguments
    digest: Mapped[str]
    secret: Mapped[str | None]  # a token that is not encrypted yet
    token: Mapped[str | None]  # encrypted
    bind: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # see `apis.bound_parameters`
    secrets_for: Mapped[str | None]  # the server that its secrets were given for; null: of any version of it
    token_origins: Mapped[list[str]] = mapped_column(default=list, server_default="{}")  # besides that server's
    presentation: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")  # `apis.presentation`
    checked_at: Mapped[datetime | None]  # its document was fetched again
    check_failure: Mapped[str | None]  # why it could not be, the last time
    refresh_at: Mapped[datetime | None]  # when its MCP server is to be asked for its tools again
    refresh_tries: Mapped[int] = mapped_column(SmallInteger, default=0, server_default="0")
