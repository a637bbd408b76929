"""Whether a task may only read, as those that an expert does again."""

from alembic import op
import sqlalchemy as sa

revision = "0065"
down_revision = "0064"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("reads_only", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.drop_column("tasks", "reads_only")
