"""Tasks have priorities, projects take turns, and what each uses a day is counted."""

from alembic import op
import sqlalchemy as sa

revision = "0014"
down_revision = "0013"

_COUNTS = ("submitted", "done", "failed", "cancelled", "turns", "generated_tokens", "calls")


def upgrade() -> None:
    op.add_column("tasks", sa.Column("priority", sa.SmallInteger(), nullable=False, server_default="0"))
    op.create_index(
        "ix_tasks_waiting",
        "tasks",
        ["project_id", sa.text("priority DESC"), "created_at", "id"],
        postgresql_where=sa.text("state = 'accepted'"),
    )
    op.create_index(
        "ix_tasks_running", "tasks", ["project_id", "lease_until"], postgresql_where=sa.text("state = 'running'")
    )
    op.create_table(
        "project_turns",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("turn", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_project_turns_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_project_turns")),
    )
    op.execute("INSERT INTO project_turns (project_id) SELECT id FROM projects")
    op.create_table(
        "project_usage",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("writer", sa.SmallInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False, server_default="0") for name in _COUNTS),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_project_usage_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "day", "writer", name=op.f("pk_project_usage")),
    )


def downgrade() -> None:
    op.drop_table("project_usage")
    op.drop_table("project_turns")
    op.drop_index("ix_tasks_running", "tasks")
    op.drop_index("ix_tasks_waiting", "tasks")
    op.drop_column("tasks", "priority")
