"""Shadows that kill their process are given up."""

from alembic import op
import sqlalchemy as sa

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("shadows", sa.Column("attempt", sa.Integer(), nullable=False, server_default="0"))
    op.alter_column("shadows", "attempt", server_default=None)


def downgrade() -> None:
    op.drop_column("shadows", "attempt")
