"""Rewards have names of their own, and nothing is kept of when workers were notified of a run."""

from alembic import op
import sqlalchemy as sa

revision = "0006"
down_revision = "0005"

_TABLES = ("training_runs", "schedules")


def upgrade() -> None:
    for table in _TABLES:
        op.execute(
            f"""
            UPDATE {table} SET settings = jsonb_set(settings, '{{reward}}', '"skill_by_name"')
            WHERE settings @> '{{"name_only_use": true}}' AND coalesce(settings ->> 'reward', 'skill') = 'skill'
            """
        )
        op.execute(f"UPDATE {table} SET settings = settings - 'name_only_use'")
    op.drop_column("training_runs", "rung_at")
    op.drop_column("training_runs", "rings")


def downgrade() -> None:
    op.add_column("training_runs", sa.Column("rings", sa.Integer(), nullable=False, server_default="0"))
    op.alter_column("training_runs", "rings", server_default=None)
    op.add_column("training_runs", sa.Column("rung_at", sa.DateTime(timezone=True), nullable=True))
    for table in _TABLES:
        op.execute(
            f"""
            UPDATE {table} SET settings = settings || '{{"reward": "skill", "name_only_use": true}}'
            WHERE settings ->> 'reward' = 'skill_by_name'
            """
        )
