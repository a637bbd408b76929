"""Brings a database up to the schema of this version."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from app.db.session import full_url, refused
from app.errors import DatabaseError

_LOCK = 0x5A6E  # any number, as long as every version uses the same


def migrate(url: str) -> None:
    """Up to the newest schema, in one transaction: all of it or nothing. Of two at once the second finds no work.

    Raises DatabaseError if the server refuses or the schema is newer than this version. Blocks.
    """
    database = create_engine(full_url(url), poolclass=NullPool)
    try:
        with database.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            config = alembic_config(connection)
            _refuse_newer(connection, config)
            command.upgrade(config, "head")
    except OperationalError as error:
        raise refused(database.url.render_as_string(), error) from error


def alembic_config(connection: Connection) -> Config:
    """What `alembic.command` needs to work on this connection. The migrations lie beside the package `app`."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parents[2] / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _refuse_newer(connection: Connection, config: Config) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    unknown = set(MigrationContext.configure(connection).get_current_heads()) - known
    if unknown:
        raise DatabaseError(
            f"the database holds schema {', '.join(sorted(unknown))}, which this version does not know: "
            "install the newer version that made it, or name another database in DATABASE_URL"
        )
