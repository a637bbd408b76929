"""Advisory locks across processes: one swap per project, one load per adapter, one trial per staging server.

They end with their connection.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from uuid import UUID

from sqlalchemy import Boolean, ColumnElement, literal_column, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.database import Sessions, unpooled
from app.errors import ConflictError

_CLASS_ID = "('x' || left(md5(CAST({} AS text)), 7))::bit(28)::int"  # a project's id as PostgreSQL's int
_PROJECT, _RELEASE_PROJECT = _CLASS_ID.format(":project"), _CLASS_ID.format("releases.project_id")
_HELD = (
    "FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_LOCK_ADAPTER = text("SELECT pg_advisory_lock(hashtextextended(:adapter, 0))")
_LOCK_STAGING = text("SELECT pg_advisory_lock(hashtextextended(:service, 1))")
_TRY_LOCK = text("SELECT pg_try_advisory_lock(:key)")
_ANNOUNCE = text(f"SELECT pg_advisory_lock_shared({_PROJECT}, :number)")
_HOLDER = text(f"SELECT objid::int {_HELD} AND classid::int = {_PROJECT} LIMIT 1")
_IS_ANNOUNCED = f"({_RELEASE_PROJECT}, releases.number) IN (SELECT classid::int, objid::int {_HELD})"
_UNLOCK = text("SELECT pg_advisory_unlock_all()")


class SwapUnderWayError(ConflictError):
    """Another process activates a release of the project, or has just begun to."""


@asynccontextmanager
async def swap_lock(sessions: Sessions, project_id: UUID, number: int) -> AsyncIterator[None]:
    """Held while release `number` is activated, without an open transaction.

    Raises SwapUnderWayError with the release that is being activated already.
    """
    async with _locking(sessions) as connection:
        await _take(connection, project_id, number)
        yield


@asynccontextmanager
async def load_lock(sessions: Sessions, adapter: str) -> AsyncIterator[None]:
    """Held while model servers load and verify an adapter; other processes wait.

    A failed load is undone, which must not remove what another process has since verified.
    """
    async with _locking(sessions) as connection:
        await connection.execute(_LOCK_ADAPTER, {"adapter": adapter})
        yield


@asynccontextmanager
async def staging_lock(sessions: Sessions, services: Iterable[str]) -> AsyncIterator[None]:
    """Held during a trial that resets these services and changes them, by the runs of all projects; others wait.

    Raises an error at the end if the lock was lost meanwhile: another trial may have interfered.
    """
    async with _locking(sessions) as connection:
        for service in sorted(set(services)):  # in one order: those who share several never wait in a circle
            await connection.execute(_LOCK_STAGING, {"service": service})
        yield


@asynccontextmanager
async def _locking(sessions: Sessions) -> AsyncIterator[AsyncConnection]:
    async with unpooled(sessions)() as session:
        connection = await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        try:
            yield connection
        finally:
            if not connection.invalidated:  # as of one that stopped waiting: what it held ended with it
                await connection.execute(_UNLOCK)


def is_being_activated() -> ColumnElement[bool]:
    """SQL condition: a row of `Release` is being activated, by any process."""
    return literal_column(_IS_ANNOUNCED, Boolean)


async def _take(connection: AsyncConnection, project_id: UUID, number: int) -> None:
    """The first lock is exclusive; the second, a shared one, announces the release's number."""
    if await connection.scalar(_TRY_LOCK, {"key": int.from_bytes(project_id.bytes[8:], "big", signed=True)}):
        await connection.execute(_ANNOUNCE, {"project": project_id, "number": number})
        return
    other = await connection.scalar(_HOLDER, {"project": project_id})
    raise SwapUnderWayError(
        f"release {other or 'of this project'} is being activated: wait until it serves, then try again"
    )
