"""Credentials know which scopes they lack; a consent keeps what it was asked for."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    op.add_column("api_credentials", sa.Column("wanted_scopes", ARRAY(sa.Text()), nullable=True))
    op.add_column("oauth_attempts", sa.Column("value", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("oauth_attempts", "value")
    op.drop_column("api_credentials", "wanted_scopes")
