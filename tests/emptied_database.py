"""The database that the tests of a process share, for tests that commit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from app.db.database import Database, open_database
from app.db.models import Base
from tests.encryption_keys import TEST_KEYS

_DELETE = ";".join(f'DELETE FROM "{table.name}"' for table in reversed(Base.metadata.sorted_tables))
"""In one message: one for each table takes twenty times as long, before and after each test."""


@asynccontextmanager
async def emptied_database(url: str) -> AsyncIterator[Database]:
    """Empty before and after the block; end all processes that write to it inside the block."""
    async with _opened(url) as database:  # which closes its connections, and can be used again
        await _empty(database)
        yield database
        await _empty(database)


@cache
def _opened(url: str) -> Database:
    """One for all tests of a process, so that a statement is compiled once."""
    return open_database(url, keys=TEST_KEYS)


async def _empty(database: Database) -> None:
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(_DELETE)
