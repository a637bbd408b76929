"""Whether a task explores, and what an exploring task may call."""

from alembic import op
import sqlalchemy as sa

revision = "0059"
down_revision = "0058"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("exploration", sa.String(length=32)))


def downgrade() -> None:
    op.drop_column("tasks", "exploration")
