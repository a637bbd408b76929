"""A promoted release is watched against the one before; webhooks are told of releases, and canaries are usual."""

from alembic import op
import sqlalchemy as sa

revision = "0030"
down_revision = "0029"

_KEEP_NO_CANARY = "settings = settings || '{\"canary_percent\": 0}' WHERE NOT settings ? 'canary_percent'"
_SETTINGS = ("canary_days", "watch_days", "watch_tasks", "watch_margin")
_EVENTS = "settings #> '{webhook,events}'"
_ALL_BEFORE = '["approval.wanted", "task.done", "task.failed", "task.cancelled"]'


def upgrade() -> None:
    op.add_column("releases", sa.Column("watched_against", sa.Uuid()))
    op.alter_column("webhook_deliveries", "task_id", nullable=True)
    op.add_column("webhook_deliveries", sa.Column("release_id", sa.Uuid()))
    op.create_foreign_key(
        op.f("fk_webhook_deliveries_release_id"),
        "webhook_deliveries",
        "releases",
        ["release_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index(op.f("ix_webhook_deliveries_release_id"), "webhook_deliveries", ["release_id"])
    op.execute(  # a webhook for all events stays one
        f"UPDATE projects SET settings = jsonb_set(settings, '{{webhook,events}}', "
        f"{_EVENTS} || '[\"release.rolled_back\"]') WHERE {_EVENTS} @> '{_ALL_BEFORE}'"
    )
    # Settings that were stored before there were canaries must not get one by the new default.
    op.execute(f"UPDATE schedules SET {_KEEP_NO_CANARY}")
    op.execute(f"UPDATE training_runs SET {_KEEP_NO_CANARY} AND state IN ('queued', 'running')")


def downgrade() -> None:
    op.execute("DELETE FROM webhook_deliveries WHERE task_id IS NULL")
    op.drop_column("webhook_deliveries", "release_id")
    op.alter_column("webhook_deliveries", "task_id", nullable=False)
    op.execute("DELETE FROM audit_entries WHERE action = 'watch ended'")
    op.execute("UPDATE skills SET moved_by = 'canary' WHERE moved_by = 'watch'")
    for name in _SETTINGS:
        op.execute(f"UPDATE projects SET settings = settings - '{name}'")
    op.execute(
        f"UPDATE projects SET settings = jsonb_set(settings, '{{webhook,events}}', "
        f"({_EVENTS}) - 'release.rolled_back') WHERE {_EVENTS} ? 'release.rolled_back'"
    )
    for table in ("schedules", "training_runs"):  # 0 is what a missing one means there
        op.execute(
            f"UPDATE {table} SET settings = settings - 'canary_percent' WHERE settings->'canary_percent' = '0'"
        )
    op.drop_column("releases", "watched_against")
