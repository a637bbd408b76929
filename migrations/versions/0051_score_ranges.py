"""The lowest and the highest score that a task was given, so that all contradictions are found."""

from alembic import op
import sqlalchemy as sa

revision = "0051"
down_revision = "0050"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("lowest_score", sa.Float()))
    op.add_column("tasks", sa.Column("highest_score", sa.Float()))
    op.execute(
        """
        UPDATE tasks SET lowest_score = LEAST(tasks.score, tasks.overruled_score, given.lowest),
            highest_score = GREATEST(tasks.score, tasks.overruled_score, given.highest)
        FROM (
            SELECT tasks.id, min(feedback.score) AS lowest, max(feedback.score) AS highest
            FROM tasks LEFT JOIN feedback ON feedback.task_id = tasks.id
            GROUP BY tasks.id HAVING count(feedback.id) > 1 OR tasks.overruled_score IS NOT NULL
        ) AS given
        WHERE given.id = tasks.id
        """
    )
    op.drop_index("ix_tasks_overruled", "tasks")
    op.create_index(
        "ix_tasks_contradicted",
        "tasks",
        ["project_id", "created_at", "id"],
        postgresql_where=sa.text("highest_score IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_contradicted", "tasks")
    op.create_index(
        "ix_tasks_overruled",
        "tasks",
        ["project_id", "created_at", "id"],
        postgresql_where=sa.text("overruled_score IS NOT NULL"),
    )
    op.drop_column("tasks", "highest_score")
    op.drop_column("tasks", "lowest_score")
