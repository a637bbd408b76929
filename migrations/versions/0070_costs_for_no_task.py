"""The part of a project's cost that was for no task."""

from alembic import op
import sqlalchemy as sa

revision = "0070"
down_revision = "0069"


def upgrade() -> None:
    op.add_column("project_usage", sa.Column("other_cost", sa.Float(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("project_usage", "other_cost")
