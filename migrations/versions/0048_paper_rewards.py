"""Stored run settings without a reward name that of the paper, which was the default when they were stored."""

from alembic import op

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    for table in ("training_runs", "schedules"):
        op.execute(
            f"""UPDATE {table} SET settings = settings || '{{"reward": "skill"}}' WHERE NOT settings ? 'reward'"""
        )


def downgrade() -> None:
    """They may keep it."""
