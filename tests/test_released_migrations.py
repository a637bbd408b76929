"""Released migrations never change: databases that have run them would never get the change."""

import hashlib
from pathlib import Path

from alembic import command
from sqlalchemy import NullPool, create_engine, text

from app.db.migrate import alembic_config, migrate

_MIGRATIONS = Path(__file__).parents[1] / "migrations" / "versions"
_RELEASED = Path(__file__).with_name("released_migrations.sha256")


def test_released_migrations_are_as_they_were_released() -> None:
    """Mend the schema by a new migration. A release appends its migrations to the file."""
    lines = [line.split() for line in _RELEASED.read_text().splitlines()]
    released = {name: digest for digest, name in lines}
    assert len(released) >= 19
    found = {name: hashlib.sha256((_MIGRATIONS / name).read_bytes()).hexdigest() for name in released}
    assert found == released


def test_a_database_from_before_a_migration_was_edited_gets_what_it_lacks(empty_database_url: str) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0019")
        for statement in _EARLIER_EDITIONS:
            connection.execute(text(statement))
    migrate(empty_database_url)
    with engine.begin() as connection:
        command.check(alembic_config(connection))  # raises if the schema is not that of the models


_EARLIER_EDITIONS = [
    "ALTER TABLE apis ALTER COLUMN document TYPE jsonb USING document::jsonb",
    "DROP INDEX ix_tasks_release",
    "ALTER TABLE skills DROP COLUMN former",
    "DROP INDEX ix_webhook_deliveries_finished",
    "DROP INDEX ix_webhook_deliveries_leased",
    "DROP INDEX ix_webhook_deliveries_queue",
    "CREATE INDEX ix_webhook_deliveries_queue ON webhook_deliveries (next_at) WHERE state = 'pending'",
]
