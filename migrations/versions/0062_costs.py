"""The prompts that a task's model read, what it cost, and the sums of both by day."""

from alembic import op
import sqlalchemy as sa

revision = "0062"
down_revision = "0061"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("tasks", sa.Column("cost", sa.Float()))
    op.add_column("project_usage", sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("project_usage", sa.Column("cost", sa.Float(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("project_usage", "cost")
    op.drop_column("project_usage", "prompt_tokens")
    op.drop_column("tasks", "cost")
    op.drop_column("tasks", "prompt_tokens")
