"""A training run shows how much is done of what it does now."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    op.add_column("training_runs", sa.Column("part", JSONB(none_as_null=True)))


def downgrade() -> None:
    op.drop_column("training_runs", "part")
