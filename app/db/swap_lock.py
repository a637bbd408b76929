"""One swap of a project, and one load of an adapter, at a time, whichever process does it.

Advisory locks, which end with their connection.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID
from zlib import crc32

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.session import Sessions
from app.errors import ConflictError

_WAIT = text("SELECT pg_advisory_lock(hashtextextended(:adapter, 0))")
_TAKE = text("SELECT pg_try_advisory_lock(:key)")
_TELL = text("SELECT pg_advisory_lock_shared(:place, :number)")
_ASK = text(
    "SELECT objid::int FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND classid::bigint = :place LIMIT 1"
)
_GIVE = text("SELECT pg_advisory_unlock_all()")


@asynccontextmanager
async def one_swap(sessions: Sessions, project_id: UUID, number: int) -> AsyncIterator[None]:
    """Held while release `number` is brought to serve. No transaction is open meanwhile.

    Raises ConflictError that names the release another one is busy with.
    """
    async with _locking(sessions) as connection:
        await _take(connection, project_id, number)
        yield


@asynccontextmanager
async def one_load(sessions: Sessions, adapter: str) -> AsyncIterator[None]:
    """Held while model servers load an adapter and prove it; others wait. Who fails at it takes away what it
    loaded, which nobody else must have proven meanwhile.
    """
    async with _locking(sessions) as connection:
        await connection.execute(_WAIT, {"adapter": adapter})
        yield


@asynccontextmanager
async def _locking(sessions: Sessions) -> AsyncIterator[AsyncConnection]:
    async with sessions() as session:
        connection = await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        try:
            yield connection
        finally:
            await connection.execute(_GIVE)


async def _take(connection: AsyncConnection, project_id: UUID, number: int) -> None:
    """The first lock excludes; the second one, which excludes nobody, says what it is held for."""
    place = crc32(project_id.bytes) >> 1  # fits PostgreSQL's int
    if await connection.scalar(_TAKE, {"key": int.from_bytes(project_id.bytes[8:], "big", signed=True)}):
        await connection.execute(_TELL, {"place": place, "number": number})
        return
    other = await connection.scalar(_ASK, {"place": place})
    raise ConflictError(
        f"release {other or 'of this project'} is being brought to serve at this moment: wait until it does, "
        "then ask again"
    )
