"""Create what databases lack that were migrated before 0003, 0011 and 0012 were edited, or 0001 before its release."""

from alembic import op

revision = "0020"
down_revision = "0019"

_ORDERED_DOCUMENTS = """
DO $$
BEGIN
    IF (SELECT data_type FROM information_schema.columns WHERE table_schema = current_schema()
        AND table_name = 'apis' AND column_name = 'document') = 'jsonb' THEN
        ALTER TABLE apis ALTER COLUMN document TYPE json;
    END IF;
END
$$
"""


def upgrade() -> None:
    op.execute(_ORDERED_DOCUMENTS)
    op.execute("CREATE INDEX IF NOT EXISTS ix_tasks_release ON tasks (release_id, started_at)")
    op.execute("ALTER TABLE skills ADD COLUMN IF NOT EXISTS former VARCHAR(32)")
    op.execute("CREATE INDEX IF NOT EXISTS ix_webhook_deliveries_finished ON webhook_deliveries (finished_at)")
    op.execute("DROP INDEX IF EXISTS ix_webhook_deliveries_queue")  # it may have other columns
    op.execute(
        "CREATE INDEX ix_webhook_deliveries_queue ON webhook_deliveries (project_id, next_at)"
        " WHERE state = 'pending'"
    )
    op.execute(
        "CREATE INDEX IF NOT EXISTS ix_webhook_deliveries_leased ON webhook_deliveries (project_id)"
        " WHERE owner IS NOT NULL"
    )


def downgrade() -> None:
    """Nothing: all this is part of the released 0019."""
