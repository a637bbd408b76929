"""The names of hosted models that were removed, beside their releases."""

from alembic import op
import sqlalchemy as sa

revision = "0069"
down_revision = "0068"


def upgrade() -> None:
    op.add_column("releases", sa.Column("removed_model", sa.Text()))


def downgrade() -> None:
    op.drop_column("releases", "removed_model")
