"""Adapters belong to a project, or to all."""

from alembic import op
import sqlalchemy as sa

revision = "0018"
down_revision = "0017"

_NOBODY = "00000000-0000-0000-0000-000000000000"  # of a project that was deleted


def upgrade() -> None:
    """To the project whose run made it or which alone has releases of it. What several have is everybody's."""
    op.add_column("adapters", sa.Column("project_id", sa.Uuid(), nullable=True))
    op.execute(
        f"""
        UPDATE adapters SET project_id = coalesce(
            (SELECT project_id FROM training_runs WHERE id = run_id),
            (SELECT min(project_id::text)::uuid FROM releases WHERE model = hash),
            '{_NOBODY}'
        )
        WHERE run_id IS NOT NULL OR (SELECT count(DISTINCT project_id) FROM releases WHERE model = hash) < 2
        """
    )


def downgrade() -> None:
    op.drop_column("adapters", "project_id")
