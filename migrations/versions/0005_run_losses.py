"""Training runs that get further between two losses are not given up."""

from alembic import op
import sqlalchemy as sa

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for name in ("losses", "lost_at"):
        op.add_column("training_runs", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
        op.alter_column("training_runs", name, server_default=None)


def downgrade() -> None:
    op.drop_column("training_runs", "lost_at")
    op.drop_column("training_runs", "losses")
