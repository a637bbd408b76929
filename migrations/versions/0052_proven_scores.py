"""Schedules count scores without those of judges, in an index."""

from alembic import op
import sqlalchemy as sa

revision = "0052"
down_revision = "0051"
_SCORED = sa.text("score IS NOT NULL")


def upgrade() -> None:
    op.drop_index("ix_tasks_scored", "tasks")
    op.create_index(
        "ix_tasks_scored",
        "tasks",
        ["project_id", "score"],
        postgresql_include=["score_source"],
        postgresql_where=_SCORED,
    )
    op.execute(
        """
        UPDATE schedules SET scored_seen = LEAST(scored_seen, (
            SELECT count(*) FROM tasks
            WHERE tasks.project_id = schedules.project_id AND score IS NOT NULL
                AND score_source IS DISTINCT FROM 'judge'
        ))
        """
    )


def downgrade() -> None:
    op.drop_index("ix_tasks_scored", "tasks")
    op.create_index("ix_tasks_scored", "tasks", ["project_id", "score"], postgresql_where=_SCORED)
