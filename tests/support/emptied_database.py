"""The database that the tests of a process share, for tests that commit."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from sqlalchemy import QueuePool

from app.db.database import Database, open_database
from app.db.tables import Base
from tests.support.encryption_keys import TEST_KEYS

_DELETE = ";".join(f'DELETE FROM "{table.name}"' for table in reversed(Base.metadata.sorted_tables))
"""In one message: one for each table takes twenty times as long, before and after each test."""


_touched = set[str]()  # databases that a test may have left with rows


@asynccontextmanager
async def emptied_database(url: str) -> AsyncIterator[Database]:
    """Empty before and after the block; end all processes that write to it inside the block."""
    database = _opened(url)
    if url in _touched:
        await _empty(database)
    _touched.add(url)
    try:
        yield database
    finally:
        if checked_out(database):
            await database.dispose()  # which leaves what a test holds to its end; it can be used again
    await _empty(database)
    _touched.discard(url)


@cache
def _opened(url: str) -> Database:
    """One for all tests of a process, so that a statement is compiled once, and few connections are opened."""
    return open_database(url, keys=TEST_KEYS)


def checked_out(database: Database) -> int:
    """The connections that somebody holds."""
    pool = database.engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


async def _empty(database: Database) -> None:
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(_DELETE)
