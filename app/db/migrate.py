"""Migrates a database to the schema of this version."""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.db.database import full_url, refused
from app.errors import DatabaseError

_MIGRATIONS = Path(__file__).parents[2] / "migrations"
_IS_MIGRATED = text("SELECT to_regclass('alembic_version') IS NOT NULL")
_HEADS = text(
    "SELECT version_num FROM alembic_version"
)  # Alembic's own statement is compiled, and kept, each time
_FORMER = re.compile(r"00[0-7]\d")  # revisions of development versions, which no later version upgrades
_LOCK = 0x5A6E  # any number, as long as every version uses the same


def migrate(url: str) -> None:
    """Migrate to the newest schema in one transaction. Safe to call from several processes at once.

    Raises DatabaseError, and changes nothing, if the server refuses the connection or the schema is of a version
    before 0.1.0 or newer than this one. Blocks.
    """
    database = create_engine(full_url(url), poolclass=NullPool)
    try:
        with database.begin() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            config = alembic_config(connection)
            refuse_unknown(connection)
            command.upgrade(config, "head")
    except OperationalError as error:
        raise refused(database.url.render_as_string(), error) from error


async def check_schema(engine: AsyncEngine) -> None:
    """Raises DatabaseError if PostgreSQL does not answer or its schema is older than this version's."""
    try:
        async with engine.connect() as connection:
            migrated = await connection.scalar(_IS_MIGRATED)
            heads = set(await connection.scalars(_HEADS)) if migrated else set()
    except DBAPIError as error:
        raise refused(engine.url.render_as_string(), error) from error
    refuse_former(heads)
    if not heads or heads & set(revisions()[1:]):  # newer is allowed: of several processes, one migrates first
        raise DatabaseError("the database has an older schema: run `sage migrate`")


def alembic_config(connection: Connection) -> Config:
    """The configuration of `alembic.command` for this connection. The migrations are next to the package `app`."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def refuse_unknown(connection: Connection) -> None:
    """Raises DatabaseError for a schema that this version does not know."""
    unknown = set(MigrationContext.configure(connection).get_current_heads()) - set(revisions())
    refuse_former(unknown)
    if unknown:
        raise DatabaseError(
            f"the database has schema {', '.join(sorted(unknown))}, which this version does not know: "
            "install the newer version that created it, or set DATABASE_URL to another database"
        )


def refuse_former(heads: Iterable[str], holder: str = "the database") -> None:
    """Raises DatabaseError for a schema of before 0.1.0: the first of today's migrations creates all tables."""
    for head in filter(_FORMER.fullmatch, heads):
        raise DatabaseError(
            f"{holder} has schema {head}, of a version before 0.1.0, and cannot be upgraded. It was left "
            "as it is: use it with the version that made it, or choose another SAGE_DATA_DIR or DATABASE_URL"
        )


@cache
def revisions() -> Sequence[str]:
    """Newest first."""
    return [script.revision for script in ScriptDirectory(str(_MIGRATIONS)).walk_revisions()]
