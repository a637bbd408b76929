"""Poolers such as PgBouncer: whether PostgreSQL is reached through one, and what needs an address without it.

A pooler in transaction mode hands a connection on after each transaction. Notifications and session locks are
bound to one connection, so they need `DATABASE_DIRECT_URL`. A pooler shows itself by the process id that it gives
its clients, which is not that of a server process.
"""

from contextlib import suppress

import psycopg

from app.db.database import full_url
from app.errors import SettingError
from app.settings import Settings

NEEDS_DIRECT = (
    "DATABASE_URL goes through a pooler, and notifications and locks need a connection of their own: set "
    "DATABASE_DIRECT_URL to the address of PostgreSQL itself"
)
_CONNECT_SECONDS = 3
_PID = "SELECT pg_backend_pid()"


def check_pooler(settings: Settings) -> None:
    """Raises SettingError if a direct address is missing. Blocks; a database that does not answer passes."""
    if not settings.database_direct_url:
        with suppress(psycopg.OperationalError):
            if is_pooled(settings.database_url):
                raise SettingError(NEEDS_DIRECT)


def is_pooled(url: str) -> bool:
    """Blocks. Raises psycopg.OperationalError if nothing answers."""
    with psycopg.connect(plain_url(url), connect_timeout=_CONNECT_SECONDS, autocommit=True) as connection:
        return connection.execute(_PID).fetchone() != (connection.info.backend_pid,)


async def passes_pooler(connection: psycopg.AsyncConnection) -> bool:
    """Of an open connection that commits each statement."""
    return await (await connection.execute(_PID)).fetchone() != (connection.info.backend_pid,)


def plain_url(url: str) -> str:
    """As the driver alone reads it."""
    return full_url(url).replace("postgresql+psycopg://", "postgresql://", 1)
