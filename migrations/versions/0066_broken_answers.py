"""How many answers of a hosted model broke off in a task: after a few, it is given up."""

from alembic import op
import sqlalchemy as sa

revision = "0066"
down_revision = "0065"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("broken_answers", sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("tasks", "broken_answers")
