"""One swap of a project, and one load of an adapter, at a time, whichever process does it.

Advisory locks, which end with their connection.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from sqlalchemy import Boolean, ColumnElement, literal_column, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.database import Sessions
from app.errors import ConflictError

_PLACE = "('x' || left(md5(CAST({} AS text)), 7))::bit(28)::int"  # a project's id as PostgreSQL's int
_OURS, _THEIRS = _PLACE.format(":project"), _PLACE.format("releases.project_id")
_HELD = (
    "FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_WAIT = text("SELECT pg_advisory_lock(hashtextextended(:adapter, 0))")
_TAKE = text("SELECT pg_try_advisory_lock(:key)")
_TELL = text(f"SELECT pg_advisory_lock_shared({_OURS}, :number)")
_ASK = text(f"SELECT objid::int {_HELD} AND classid::int = {_OURS} LIMIT 1")
_AMONG = f"({_THEIRS}, releases.number) IN (SELECT classid::int, objid::int {_HELD})"
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


def under_way() -> ColumnElement[bool]:
    """Is a row of `Release` being brought to serve at this moment? By any process."""
    return literal_column(_AMONG, Boolean)


async def _take(connection: AsyncConnection, project_id: UUID, number: int) -> None:
    """The first lock excludes; the second one, which excludes nobody, says what it is held for."""
    if await connection.scalar(_TAKE, {"key": int.from_bytes(project_id.bytes[8:], "big", signed=True)}):
        await connection.execute(_TELL, {"project": project_id, "number": number})
        return
    other = await connection.scalar(_ASK, {"project": project_id})
    raise ConflictError(
        f"release {other or 'of this project'} is being brought to serve at this moment: wait until it does, "
        "then ask again"
    )
