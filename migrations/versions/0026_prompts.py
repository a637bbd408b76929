"""The prompt that a task began under, and the one that a runner serves with."""

from alembic import op
import sqlalchemy as sa

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("prompt", sa.Text()))
    op.add_column("runners", sa.Column("prompt", sa.Text()))
    op.add_column("runners", sa.Column("draining", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.drop_column("runners", "draining")
    op.drop_column("runners", "prompt")
    op.drop_column("tasks", "prompt")
