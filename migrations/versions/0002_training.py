"""Training: runs and their steps, schedules, adapters, evaluations, and where a release came from."""

from datetime import datetime

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _schedules()
    _training_runs()
    _what_runs_leave()
    op.add_column("releases", sa.Column("training_run_id", sa.Uuid(), nullable=True))
    op.add_column("releases", sa.Column("evidence", _json(none_as_null=True), nullable=True))
    op.add_column("releases", sa.Column("activated_at", sa.DateTime(timezone=True), nullable=True))
    op.create_foreign_key(
        op.f("fk_releases_training_run_id"),
        "releases",
        "training_runs",
        ["training_run_id"],
        ["id"],
        ondelete="SET NULL",
    )
    op.create_index(op.f("ix_releases_training_run_id"), "releases", ["training_run_id"], unique=False)
    op.execute("UPDATE releases SET activated_at = created_at WHERE state = 'active'")
    op.create_index(
        "ix_tasks_scored",
        "tasks",
        ["project_id"],
        unique=False,
        postgresql_where=sa.text("score IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_scored", table_name="tasks")
    op.drop_index(op.f("ix_releases_training_run_id"), table_name="releases")
    op.drop_column("releases", "activated_at")
    op.drop_column("releases", "evidence")
    op.drop_column("releases", "training_run_id")
    op.drop_table("evaluations")
    op.drop_table("adapters")
    op.drop_table("run_steps")
    op.drop_table("training_runs")
    op.drop_table("schedules")


def _schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("every_hours", sa.Double(), nullable=True),
        sa.Column("every_scored_tasks", sa.Integer(), nullable=True),
        sa.Column("settings", _json(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("next_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("scored_seen", sa.BigInteger(), nullable=False),
        sa.Column("rev", sa.BigInteger(), nullable=False),
        sa.Column("fired_at", sa.DateTime(timezone=True), nullable=True),
        _created_at(),
        sa.CheckConstraint("every_hours > 0", name=op.f("ck_schedules_every_hours")),
        sa.CheckConstraint("every_scored_tasks > 0", name=op.f("ck_schedules_every_scored_tasks")),
        sa.CheckConstraint("num_nonnulls(every_hours, every_scored_tasks) > 0", name=op.f("ck_schedules_ever")),
        _refers("schedules", "project_id", "projects.id", "CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("project_id", name=op.f("uq_schedules_project_id")),
    )


def _training_runs() -> None:
    op.create_table(
        "training_runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("schedule_id", sa.Uuid(), nullable=True),
        sa.Column("kind", _one_of("runkind", "rollout", "logged", "sft"), nullable=False),
        sa.Column("settings", _json(), nullable=False),
        sa.Column(
            "state", _one_of("runstate", "queued", "running", "done", "failed", "cancelled"), nullable=False
        ),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("result", _json(none_as_null=True), nullable=True),
        sa.Column("rings", sa.Integer(), nullable=False),
        sa.Column("rung_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        _created_at(),
        _refers("training_runs", "project_id", "projects.id", "CASCADE"),
        _refers("training_runs", "schedule_id", "schedules.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_training_runs")),
    )
    op.create_index("ix_training_runs_listing", "training_runs", ["project_id", "created_at", "id"], unique=False)
    op.create_index(
        "ix_training_runs_queue",
        "training_runs",
        ["created_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_index(op.f("ix_training_runs_schedule_id"), "training_runs", ["schedule_id"], unique=False)
    op.create_index(
        "uq_training_runs_one_running",
        "training_runs",
        ["project_id"],
        unique=True,
        postgresql_where=sa.text("state = 'running'"),
    )


def _what_runs_leave() -> None:
    op.create_table(
        "run_steps",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("metrics", _json(), nullable=False),
        _created_at(),
        _refers("run_steps", "run_id", "training_runs.id", "CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "index", name=op.f("pk_run_steps")),
    )
    op.create_table(
        "adapters",
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("base", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        _created_at(),
        _refers("adapters", "run_id", "training_runs.id", "SET NULL"),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_adapters")),
    )
    op.create_index(op.f("ix_adapters_run_id"), "adapters", ["run_id"], unique=False)
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("release_id", sa.Uuid(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("settings", _json(), nullable=False),
        sa.Column("figures", _json(), nullable=False),
        _created_at(),
        _refers("evaluations", "project_id", "projects.id", "CASCADE"),
        _refers("evaluations", "run_id", "training_runs.id", "SET NULL"),
        _refers("evaluations", "release_id", "releases.id", "SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
    )
    for column in ("project_id", "run_id", "release_id"):
        op.create_index(op.f(f"ix_evaluations_{column}"), "evaluations", [column], unique=False)


def _refers(table: str, column: str, to: str, ondelete: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [to], name=op.f(f"fk_{table}_{column}"), ondelete=ondelete)


def _one_of(name: str, *values: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, length=32)


def _json(*, none_as_null: bool = False) -> postgresql.JSONB:
    return postgresql.JSONB(none_as_null=none_as_null, astext_type=sa.Text())


def _created_at() -> sa.Column[datetime]:
    return sa.Column(
        "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
    )
