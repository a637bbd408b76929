"""The generations that each runner has requested."""

from alembic import op
import sqlalchemy as sa

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    for name in ("generating", "waiting"):
        op.add_column("runners", sa.Column(name, sa.Integer(), server_default="0", nullable=False))


def downgrade() -> None:
    for name in ("generating", "waiting"):
        op.drop_column("runners", name)
