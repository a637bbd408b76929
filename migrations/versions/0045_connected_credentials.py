"""Credentials know when a person has consented."""

from alembic import op
import sqlalchemy as sa

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    op.add_column("api_credentials", sa.Column("connected_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("api_credentials", "connected_at")
