"""Count apart which runners were killed from outside while they executed a task and nothing else."""

from alembic import op
import sqlalchemy as sa

revision = "0058"
down_revision = "0057"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("lone_kills", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("tasks", "lone_kills")
