"""Tasks may follow a conversation."""

from alembic import op
import sqlalchemy as sa

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("conversation", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("tasks", "conversation")
