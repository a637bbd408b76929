"""The keys that submitted tasks, and that scored them."""

from alembic import op
import sqlalchemy as sa

revision = "0057"
down_revision = "0056"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("key_id", sa.Uuid()))
    op.add_column("tasks", sa.Column("scored_by", sa.Uuid()))


def downgrade() -> None:
    op.drop_column("tasks", "scored_by")
    op.drop_column("tasks", "key_id")
