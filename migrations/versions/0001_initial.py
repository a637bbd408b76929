"""The first schema."""

from datetime import datetime

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("skill_rev", sa.BigInteger(), nullable=False),
        _created_at(),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "apis",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("server", sa.Text(), nullable=True),
        sa.Column("document", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=True),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_apis_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_apis")),
        sa.UniqueConstraint("project_id", "name", name=op.f("uq_apis_project_id")),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_keys_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("hash", name=op.f("uq_keys_hash")),
    )
    op.create_table(
        "releases",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "candidate", "active", "rejected", "retired", name="releasestate", native_enum=False, length=32
            ),
            nullable=False,
        ),
        sa.Column("model", sa.Text(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_releases_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("project_id", "number", name=op.f("uq_releases_project_id")),
    )
    op.create_index(
        "uq_releases_one_active",
        "releases",
        ["project_id"],
        unique=True,
        postgresql_where=sa.text("state = 'active'"),
    )
    op.create_table(
        "tasks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("instruction", sa.Text(), nullable=False),
        sa.Column("scenario", sa.Text(), nullable=True),
        sa.Column("variables", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("use_skills", sa.Boolean(), nullable=False),
        sa.Column("check_code", sa.Text(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_digest", sa.Text(), nullable=True),
        sa.Column(
            "state",
            sa.Enum(
                "accepted",
                "running",
                "done",
                "failed",
                "cancelled",
                name="taskstate",
                native_enum=False,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column(
            "stop",
            sa.Enum(
                "completed",
                "no_code",
                "turn_limit",
                "token_limit",
                "context_full",
                "call_limit",
                "error_limit",
                "wall_limit",
                "cancelled",
                "in_doubt",
                name="stop",
                native_enum=False,
                length=32,
            ),
            nullable=True,
        ),
        sa.Column("answer", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("checked", sa.Boolean(), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("generated_tokens", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        _created_at(),
        sa.CheckConstraint("score BETWEEN 0 AND 1", name=op.f("ck_tasks_score")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_tasks_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_tasks_release_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tasks")),
        sa.UniqueConstraint("project_id", "idempotency_key", name=op.f("uq_tasks_project_id")),
    )
    op.create_index("ix_tasks_listing", "tasks", ["project_id", "created_at", "id"], unique=False)
    op.create_index(
        "ix_tasks_queue",
        "tasks",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('accepted', 'running')"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("comment", sa.Text(), nullable=True),
        _created_at(),
        sa.CheckConstraint("score BETWEEN 0 AND 1", name=op.f("ck_feedback_score")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_feedback_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
    )
    op.create_index(op.f("ix_feedback_task_id"), "feedback", ["task_id"], unique=False)
    op.create_table(
        "skills",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column(
            "state",
            sa.Enum("active", "superseded", "retired", "deleted", name="skillstate", native_enum=False, length=32),
            nullable=False,
        ),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("apis", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("instruction", sa.Text(), nullable=False),
        sa.Column("slots", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("scenario", sa.Text(), nullable=True),
        sa.Column("task_id", sa.Uuid(), nullable=True),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("embedder", sa.Text(), nullable=True),
        sa.Column("query_vector", sa.LargeBinary(), nullable=True),
        sa.Column("source_vector", sa.LargeBinary(), nullable=True),
        sa.Column("rev", sa.BigInteger(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_skills_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_skills_release_id")),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_skills_task_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_skills")),
        sa.UniqueConstraint("project_id", "name", "version", name=op.f("uq_skills_project_id")),
    )
    op.create_index("ix_skills_rev", "skills", ["project_id", "rev"], unique=False)
    op.create_index(op.f("ix_skills_task_id"), "skills", ["task_id"], unique=False)
    op.create_index(
        "uq_skills_one_active_version",
        "skills",
        ["project_id", "name"],
        unique=True,
        postgresql_where=sa.text("state = 'active'"),
    )
    op.create_table(
        "task_calls",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("api", sa.Text(), nullable=False),
        sa.Column("arguments", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("repeatable", sa.Boolean(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_task_calls_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "seq", name=op.f("pk_task_calls")),
    )
    op.create_table(
        "task_events",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_task_events_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "seq", name=op.f("pk_task_events")),
    )
    op.create_table(
        "task_turns",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_task_turns_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task_id", "index", name=op.f("pk_task_turns")),
    )
    op.create_table(
        "trajectories",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("record", sa.LargeBinary(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_trajectories_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["release_id"], ["releases.id"], name=op.f("fk_trajectories_release_id")),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_trajectories_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trajectories")),
        sa.UniqueConstraint("task_id", name=op.f("uq_trajectories_task_id")),
    )
    op.create_index(op.f("ix_trajectories_project_id"), "trajectories", ["project_id"], unique=False)
    op.create_table(
        "skill_offers",
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("skill_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("ranks", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("returned", sa.Integer(), nullable=False),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["skill_id"], ["skills.id"], name=op.f("fk_skill_offers_skill_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_skill_offers_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", "skill_id", name=op.f("pk_skill_offers")),
    )
    op.create_index(op.f("ix_skill_offers_skill_id"), "skill_offers", ["skill_id"], unique=False)


def downgrade() -> None:
    op.drop_table("skill_offers")
    op.drop_table("trajectories")
    op.drop_table("task_turns")
    op.drop_table("task_events")
    op.drop_table("task_calls")
    op.drop_table("skills")
    op.drop_table("feedback")
    op.drop_table("tasks")
    op.drop_table("releases")
    op.drop_table("keys")
    op.drop_table("apis")
    op.drop_table("projects")


def _created_at() -> sa.Column[datetime]:
    return sa.Column(
        "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
    )
