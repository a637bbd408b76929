"""Verifiers score tasks, and each score says where it comes from."""

from alembic import op
import sqlalchemy as sa

revision = "0033"
down_revision = "0032"

_SETTINGS = ("verifier", "rubric", "judge_agreement")
_FEEDBACK = "EXISTS (SELECT FROM feedback WHERE feedback.task_id = tasks.id)"
_SOURCE = f"CASE WHEN {_FEEDBACK} THEN 'person' WHEN check_code <> '' THEN 'check' ELSE 'judge' END"


def upgrade() -> None:
    op.add_column("projects", sa.Column("verifier_secret", sa.Text()))
    op.add_column("tasks", sa.Column("score_source", sa.String(length=32)))
    op.add_column("tasks", sa.Column("judged_by", sa.Text()))
    op.execute(f"UPDATE tasks SET score_source = {_SOURCE} WHERE score IS NOT NULL")
    op.create_index(
        "ix_tasks_judged",
        "tasks",
        ["project_id", "judged_by"],
        postgresql_where=sa.text("judged_by IS NOT NULL"),
    )
    op.create_table(
        "verifications",
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until", sa.DateTime(timezone=True)),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column(
            "next_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("problem", sa.Text()),
        sa.Column("reason", sa.Text()),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_verifications_project_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["task_id"], ["tasks.id"], name=op.f("fk_verifications_task_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task_id", name=op.f("pk_verifications")),
    )
    op.create_index(
        "ix_verifications_queue",
        "verifications",
        ["project_id", "next_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index(
        "ix_verifications_leased",
        "verifications",
        ["project_id"],
        postgresql_where=sa.text("owner IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("verifications")
    for name in _SETTINGS:
        op.execute(f"UPDATE projects SET settings = settings - '{name}'")
    op.drop_index("ix_tasks_judged", "tasks")
    op.drop_column("tasks", "judged_by")
    op.drop_column("tasks", "score_source")
    op.drop_column("projects", "verifier_secret")
