"""Brings a database to the schema of this version, and copies all of its rows out and in again.

`pg_dump` needs binaries of the server's version; the copy needs none, and reads another version's rows too.
Blocks.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec
import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy import Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.base.errors import ConflictError, DatabaseError, first_line
from app.db.database import full_url, refused

_MIGRATIONS = Path(__file__).parents[2] / "migrations"
_IS_MIGRATED = text("SELECT to_regclass('alembic_version') IS NOT NULL")
_HEADS = text(
    "SELECT version_num FROM alembic_version"
)  # Alembic's own statement is compiled, and kept, each time
_FORMER = re.compile(r"00[0-7]\d")  # revisions of development versions, which no later version upgrades
_LOCK = 0x5A6E  # any number, as long as every version uses the same
_CHUNK = 8 << 20  # bytes of rows that are handed on together
_VERSIONS = "alembic_version"
_FORMATS = ("SET LOCAL datestyle = 'ISO'", "SET LOCAL timezone = 'UTC'", "SET LOCAL extra_float_digits = 1")
_TABLES = """
    SELECT c.relname, array_agg(a.attname ORDER BY a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    GROUP BY c.relname ORDER BY c.relname
"""
_REFERENCES = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE contype = 'f' AND connamespace = current_schema()::regnamespace AND conparentid = 0
"""
_COUNTED = """
    SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attidentity <> ''
"""
_OTHERS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
        AND backend_type = 'client backend'
"""


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


class Table(msgspec.Struct, frozen=True):
    """A table and the columns that are copied."""

    name: str
    columns: list[str]


class Snapshot:
    """All rows as of one moment, while the server goes on writing."""

    def __init__(self, connection: "psycopg.Connection[tuple[object, ...]]") -> None:
        self._connection = connection
        self.revision = _revision(connection)
        refuse_former([self.revision])
        self.server = connection.info.server_version
        self.tables = [table for table in _tables(connection) if table.name != _VERSIONS]

    def rows(self, table: Table) -> Iterator[bytes]:
        """Whole rows, some megabytes at a time."""
        with self._connection.cursor() as cursor, cursor.copy(_copy(table, "TO STDOUT")) as copy:
            chunk = bytearray()
            for row in copy:
                chunk += row
                if len(chunk) >= _CHUNK:
                    yield bytes(chunk)
                    chunk.clear()
            if chunk:
                yield bytes(chunk)

    def column(self, table: str, column: str) -> list[object]:
        """One column of all rows; none where an earlier schema lacks the table."""
        if table not in [each.name for each in self.tables]:
            return []
        query = sql.SQL("SELECT {} FROM {}").format(sql.Identifier(column), sql.Identifier(table))
        return [value for (value,) in self._connection.execute(query)]


@contextmanager
def read_snapshot(url: str) -> Iterator[Snapshot]:
    """Raises DatabaseError if the server does not answer, or the database was never migrated."""
    try:
        with _connect(url) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            for each in _FORMATS:
                connection.execute(each)
            yield Snapshot(connection)
    except psycopg.Error as error:
        raise DatabaseError(f"the database cannot be read: {first_line(error)}. Try again") from error


class EmptySchema:
    """The tables of one revision, without rows. Everything is one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        self._driver: psycopg.Connection[tuple[object, ...]] = driver
        self._references = self._driver.execute(_REFERENCES).fetchall()
        for table, name, _ in self._references:
            drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            self._driver.execute(drop.format(sql.Identifier(str(table)), sql.Identifier(str(name))))

    def write(self, table: Table, rows: Iterable[bytes]) -> int:
        """Add rows, which may refer to later ones. Returns their number."""
        with self._driver.cursor() as cursor:
            with cursor.copy(_copy(table, "FROM STDIN")) as copy:
                for piece in rows:
                    copy.write(piece)
            return cursor.rowcount

    def finish(self) -> None:
        """Check references, let numbers continue after the highest, and migrate to the schema of this version."""
        for table, name, definition in self._references:
            add = sql.SQL(f"ALTER TABLE {{}} ADD CONSTRAINT {{}} {definition}")
            self._driver.execute(add.format(sql.Identifier(str(table)), sql.Identifier(str(name))))
        for table, column in self._driver.execute(_COUNTED).fetchall():
            place = sql.Identifier(str(table))
            highest = sql.SQL("SELECT setval(pg_get_serial_sequence({}, {}), max({})) FROM {} HAVING max({}) > 0")
            name = sql.Identifier(str(column))
            self._driver.execute(
                highest.format(sql.Literal(str(table)), sql.Literal(str(column)), name, place, name)
            )
        command.upgrade(alembic_config(self._connection), "head")
        self._driver.execute("ANALYZE")


def check_revision(revision: str) -> None:
    """Raises DatabaseError for a schema that this version does not know."""
    refuse_former([revision], "the backup")
    if revision not in revisions():
        raise DatabaseError(
            f"the backup has schema {revision}, which this version does not know: install the newer version that "
            "made it"
        )


def check_empty(url: str, *, replace: bool) -> None:
    """Raises ConflictError if the database has rows, unless `replace`, or is used by other processes or for other
    tables.
    """
    try:
        with _connect(url) as connection:
            others = connection.execute(_OTHERS).fetchone()
            if others and others[0]:
                raise ConflictError(
                    f"{others[0]} other connections use the database: stop the API, all runners and workers"
                )
            names = [table.name for table in _tables(connection)]
            if names and _VERSIONS not in names:
                raise ConflictError(f"the database has other tables ({names[0]}, ...): choose an empty database")
            if not replace and (
                full := [name for name in names if name != _VERSIONS and _has_rows(connection, name)]
            ):
                raise ConflictError(
                    f"the database is not empty ({full[0]} has rows): choose another, or --replace it"
                )
    except psycopg.Error as error:
        raise DatabaseError(f"the database does not answer: {first_line(error)}") from error


@contextmanager
def empty_schema(url: str, revision: str) -> Iterator[EmptySchema]:
    """The schema of the revision in place of what there was. Committed at the end, or nothing changes."""
    engine = create_engine(full_url(url), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            config = alembic_config(connection)
            refuse_unknown(connection)
            command.downgrade(config, "base")
            command.upgrade(config, revision)
            schema = EmptySchema(connection)
            yield schema
            schema.finish()
    except OperationalError as error:
        raise refused(engine.url.render_as_string(), error) from error
    except psycopg.Error as error:
        raise DatabaseError(f"the rows cannot be written: {first_line(error)}. Nothing was changed") from error


def _connect(url: str) -> "psycopg.Connection[tuple[object, ...]]":
    parsed = create_engine(full_url(url)).url
    options = {name: str(value) for name, value in parsed.query.items()}
    given = {"host": parsed.host, "port": parsed.port, "user": parsed.username, "dbname": parsed.database}
    password = None if parsed.password is None else str(parsed.password)
    named = {
        name: value for name, value in {**given, "password": password, **options}.items() if value is not None
    }
    return psycopg.connect(client_encoding="UTF8", **named)  # type: ignore[arg-type]


def _revision(connection: "psycopg.Connection[tuple[object, ...]]") -> str:
    if _VERSIONS not in [table.name for table in _tables(connection)]:
        raise DatabaseError("the database has no tables yet: there is nothing to back up. Check DATABASE_URL")
    found = connection.execute(f"SELECT version_num FROM {_VERSIONS}").fetchone()
    if found is None:
        raise DatabaseError("the database has no schema: there is nothing to back up. Check DATABASE_URL")
    return str(found[0])


def _tables(connection: "psycopg.Connection[tuple[object, ...]]") -> list[Table]:
    return [Table(str(name), [str(each) for each in columns]) for name, columns in connection.execute(_TABLES)]  # type: ignore[attr-defined]


def _has_rows(connection: "psycopg.Connection[tuple[object, ...]]", table: str) -> bool:
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(table))
    found = connection.execute(query).fetchone()
    return bool(found and found[0])


def _copy(table: Table, direction: str) -> sql.Composed:
    columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    return sql.SQL("COPY {} ({}) " + direction).format(sql.Identifier(table.name), columns)
