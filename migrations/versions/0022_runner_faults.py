"""What is wrong with a runner, by part, and how often its background work failed."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

revision = "0022"
down_revision = "0021"

_COUNTERS = ("loop_failures", "loop_restarts", "dropped_lines")


def upgrade() -> None:
    op.add_column("runners", sa.Column("faults", JSONB(), server_default="{}", nullable=False))
    for name in _COUNTERS:
        op.add_column("runners", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    for name in ("faults", *_COUNTERS):
        op.drop_column("runners", name)
