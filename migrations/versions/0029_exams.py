"""Exams: named sets of tasks on which a project's candidates are examined."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.create_table(
        "exams",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column(
            "created_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_exams_project_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_exams")),
        sa.UniqueConstraint("project_id", "name", "version", name=op.f("uq_exams_project_id")),
    )
    op.create_table(
        "exam_tasks",
        sa.Column("exam_id", sa.Uuid(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("instruction", sa.Text(), nullable=False),
        sa.Column("scenario", sa.Text()),
        sa.Column("variables", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("check_code", sa.Text()),
        sa.Column("task_id", sa.Uuid()),
        sa.ForeignKeyConstraint(["exam_id"], ["exams.id"], name=op.f("fk_exam_tasks_exam_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name=op.f("fk_exam_tasks_task_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("exam_id", "position", name=op.f("pk_exam_tasks")),
    )
    op.create_index(op.f("ix_exam_tasks_task_id"), "exam_tasks", ["task_id"])


def downgrade() -> None:
    op.drop_table("exam_tasks")
    op.drop_table("exams")
