"""A canary's shares over time, by which its tasks count."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

revision = "0032"
down_revision = "0031"

_SETTINGS = ("canary_loss", "canary_most_percent")


def upgrade() -> None:
    op.add_column("releases", sa.Column("canary_shares", postgresql.JSONB()))
    op.execute(  # those that serve have had one share so far
        "UPDATE releases SET canary_shares = jsonb_build_array("
        "jsonb_build_object('percent', canary_percent, 'since', to_jsonb(canary_at))) WHERE state = 'canary'"
    )


def downgrade() -> None:
    op.execute("DELETE FROM audit_entries WHERE action = 'canary raised'")
    for name in _SETTINGS:
        op.execute(f"UPDATE projects SET settings = settings - '{name}'")
    op.drop_column("releases", "canary_shares")
