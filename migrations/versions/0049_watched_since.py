"""Since when the weights of a release are watched, which may be longer than it serves."""

from alembic import op
import sqlalchemy as sa

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    op.add_column("releases", sa.Column("watched_since", sa.DateTime(timezone=True)))
    op.execute("UPDATE releases SET watched_since = activated_at WHERE watched_against IS NOT NULL")


def downgrade() -> None:
    op.drop_column("releases", "watched_since")
