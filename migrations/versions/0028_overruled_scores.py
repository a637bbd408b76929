"""A person's feedback counts for more than a check: what it replaced, and whose it is."""

from alembic import op
import sqlalchemy as sa

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("overruled_score", sa.Float()))
    op.create_index(
        "ix_tasks_overruled",
        "tasks",
        ["project_id", "created_at", "id"],
        postgresql_where=sa.text("overruled_score IS NOT NULL"),
    )
    op.add_column("feedback", sa.Column("author", sa.Text()))


def downgrade() -> None:
    op.drop_column("feedback", "author")
    op.drop_index("ix_tasks_overruled", "tasks")
    op.drop_column("tasks", "overruled_score")
