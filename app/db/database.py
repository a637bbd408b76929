"""The database, and sessions on it."""

from typing import Any, Self

import msgspec
from sqlalchemy import event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from app.db.column_types import to_json
from app.errors import DatabaseError

Sessions = async_sessionmaker[AsyncSession]

UNAVAILABLE = (DBAPIError, NoConnectionError)
"""What sessions raise where the database does not answer, or all connections of this process are taken."""
AWAY = (*UNAVAILABLE, OSError)
"""What a loop that looks again waits out: an answer that is late is an OSError, too."""

_KEEP_ALIVE = "SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3"


class Database(msgspec.Struct, frozen=True):
    """An open database. Nothing is connected before the first use."""

    engine: AsyncEngine
    sessions: Sessions

    async def dispose(self) -> None:
        await self.engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dispose()


def open_database(url: str, *, connections: int = 20) -> Database:
    """Raises DatabaseError if the URL is not one of PostgreSQL."""
    engine = create_async_engine(full_url(url), pool_size=connections, pool_pre_ping=True, json_serializer=to_json)
    event.listen(engine.sync_engine, "connect", _keep_alive)
    return Database(engine, async_sessionmaker(engine, expire_on_commit=False))


def _keep_alive(connection: Any, _: object) -> None:
    """PostgreSQL frees the locks of a host that is lost after a minute, not after the two hours of its system.

    Said here, not in the options of the URL: poolers such as PgBouncer refuse those. No effect on a Unix socket.
    """
    connection.autocommit = True
    connection.cursor().execute(_KEEP_ALIVE)
    connection.autocommit = False


def full_url(url: str) -> str:
    """The URL with the driver we use, whatever it said: postgres://, postgresql://, postgresql+psycopg://."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise DatabaseError(f"DATABASE_URL cannot be read: {error}") from error
    if parsed.drivername.split("+")[0] not in ("postgres", "postgresql"):
        raise DatabaseError(f"DATABASE_URL names {parsed.drivername}, but only postgresql:// works")
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def refused(url: str, error: DBAPIError) -> DatabaseError:
    reason = str(error.orig).strip().splitlines()[0]
    return DatabaseError(f"PostgreSQL at {url} refuses: {reason}. Check DATABASE_URL and that the server runs")
