"""How far old rows of each project were deleted, and which tasks each training run learned from."""

from alembic import op
import sqlalchemy as sa

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_table(
        "retention_marks",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_retention_marks_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("project_id", "kind", name=op.f("pk_retention_marks")),
    )
    op.create_table(
        "run_tasks",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["training_runs.id"], name=op.f("fk_run_tasks_run_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_run_tasks_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "task_id", name=op.f("pk_run_tasks")),
    )
    op.create_index(op.f("ix_run_tasks_task_id"), "run_tasks", ["task_id"])
    op.add_column("training_runs", sa.Column("started_from", sa.Text(), nullable=True))
    op.add_column("training_runs", sa.Column("erased", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.drop_column("training_runs", "erased")
    op.drop_column("training_runs", "started_from")
    op.drop_table("run_tasks")
    op.drop_table("retention_marks")
