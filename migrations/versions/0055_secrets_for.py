"""The server that an API's secrets were given for."""

from alembic import op
import sqlalchemy as sa

revision = "0055"
down_revision = "0054"


def upgrade() -> None:
    op.add_column("apis", sa.Column("secrets_for", sa.Text()))


def downgrade() -> None:
    op.drop_column("apis", "secrets_for")
