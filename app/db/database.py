"""The database, sessions on it, and what its columns can hold.

Sandboxed code and live APIs may return NUL, lone surrogates, NaN or 2 ** 99: they are made storable here.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from traceback import walk_tb
from typing import Any, Self, TypeAlias

import msgspec
import psycopg
from sqlalchemy import CursorResult, Dialect, ExceptionContext, Executable, Text, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    InterfaceError,
    InvalidatePoolError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.pool import ConnectionPoolEntry, NullPool
from sqlalchemy.types import TypeDecorator

from app.base.encryption import KeyRing
from app.base.errors import DatabaseError, SettingError, first_line
from app.base.values import Json

Sessions = async_sessionmaker[AsyncSession]
Handle: TypeAlias = AsyncSession | AsyncConnection

UNAVAILABLE = (OperationalError, InterfaceError, NoConnectionError)
"""Raised by sessions if the database does not answer, or all connections of this process are in use.

A statement or value that the database refuses raises another error, because it will be refused again.
"""
TRANSIENT = (*UNAVAILABLE, OSError)
"""Errors after which a loop tries again. A timeout is an OSError."""

_DRIVERS = ("psycopg", "sqlalchemy")
_LIMIT_EXCEEDED = "54"  # class of SQLSTATE: a value is too large, too deep or too long for PostgreSQL
_LOST = ("25006", "25P03")  # read-only, as after a failover, and idle for too long: the connection is replaced
_KEYS = "keys"
_AUTOCOMMIT = "autocommit"  # the engine that commits each statement by itself, on the same connections
_TRANSACTION_SECONDS = 30.0  # no step within one takes so long
_USED = "used"  # when a connection was last used, on the monotonic clock
_RETRY_SECONDS = 30.0
_PAUSE_SECONDS = 0.5  # between retries
_IDLE_SECONDS = 1.0  # after which a connection is checked before it is used
_UNPOOLED = "unpooled"
_SET_UP = (
    "SELECT pg_backend_pid(), set_config('tcp_keepalives_idle', '30', false),"
    " set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '3', false),"
    " set_config('idle_in_transaction_session_timeout', %s, false)"
)

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Database(msgspec.Struct, frozen=True):
    """An open database. It connects on first use."""

    engine: AsyncEngine
    sessions: Sessions

    async def dispose(self) -> None:
        await self.engine.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dispose()


def open_database(
    url: str,
    *,
    connections: int = 20,
    keys: KeyRing | None = None,
    direct_url: str = "",
    transaction_seconds: float = _TRANSACTION_SECONDS,
) -> Database:
    """Sessions need `keys` to store or read a secret. `direct_url` leads to the same database without a pooler.

    A transaction in which nothing is done for `transaction_seconds` (0: forever) is rolled back, and its
    connection closed: a process that is paused in one must not keep others from what it has locked.

    Raises DatabaseError if the URL is not a PostgreSQL URL.
    """
    engine = _engine(url, transaction_seconds, pool_size=connections, json_serializer=to_json)
    event.listen(engine.sync_engine, "connect", lambda _, record: record.info.update(session_info(keys)))
    event.listen(engine.sync_engine, "checkin", lambda _, record: record.info.update({_USED: time.monotonic()}))
    event.listen(
        engine.sync_engine,
        "checkout",
        lambda connection, record, _: _check_idle(connection, record, engine.dialect),
    )
    sessions = sessions_on(engine, keys)
    if direct_url and direct_url != url:  # a connection for each session, for as long as it lasts
        engine_without_pool = _engine(direct_url, _TRANSACTION_SECONDS, poolclass=NullPool)
        sessions.kw["info"][_UNPOOLED] = async_sessionmaker(engine_without_pool)
    return Database(engine, sessions)


def unpooled(sessions: Sessions) -> Sessions:
    """Sessions for what ends with its connection, such as a lock: a pooler would hand it to someone else."""
    direct_sessions = sessions.kw.get("info", {}).get(_UNPOOLED)
    return direct_sessions if isinstance(direct_sessions, async_sessionmaker) else sessions


def sessions_on(engine: AsyncEngine, keys: KeyRing | None = None) -> Sessions:
    info = session_info(keys) | {_AUTOCOMMIT: engine.execution_options(isolation_level="AUTOCOMMIT")}
    return async_sessionmaker(engine, expire_on_commit=False, info=info)


def session_info(keys: KeyRing | None) -> dict[str, Any]:
    """The `info` of sessions that encrypt and decrypt with these keys."""
    return {} if keys is None else {_KEYS: keys}


def keys_of(handle: Handle) -> KeyRing:
    """The keys that encrypt what is stored through it. Raises SettingError if it was opened without any."""
    keys = handle.info.get(_KEYS)
    if not isinstance(keys, KeyRing):
        raise SettingError("the database was opened without keys for secrets: set SAGE_SECRET_KEY")
    return keys


def _classify(context: ExceptionContext) -> None:
    """Correct the driver, to which limits that a value exceeds are operational and a lost primary is not."""
    error = context.original_exception
    state = getattr(error, "sqlstate", None) or ""
    if state.startswith(_LIMIT_EXCEEDED):
        raise DataError(context.statement, context.parameters, error, hide_parameters=True) from error
    if state in _LOST or (isinstance(error, AttributeError | AssertionError) and is_lost_connection(error)):
        raise OperationalError(context.statement, context.parameters, error, hide_parameters=True) from error


def is_lost_connection(error: BaseException) -> bool:
    """A connection that was killed at a moment that the driver or SQLAlchemy does not foresee.

    It then raises an error of the driver that nobody has translated, or uses what the connection no longer has.
    """
    if isinstance(error, AttributeError | AssertionError):
        frames = [frame for frame, _ in walk_tb(error.__traceback__)]
        module = frames[-1].f_globals.get("__name__", "") if frames else ""
        return getattr(error, "obj", None) is None and module.partition(".")[0] in _DRIVERS
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)


def _engine(url: str, transaction_seconds: float, **options: Any) -> AsyncEngine:
    engine = create_async_engine(
        full_url(url),
        connect_args={"async_creator_fn": _Connection.connect},
        hide_parameters=True,  # errors are logged
        **options,
    )
    idle = f"{round(transaction_seconds * 1000)}ms"
    event.listen(engine.sync_engine, "connect", lambda connection, _: _set_up(connection, idle))
    event.listen(engine.sync_engine, "handle_error", _classify)
    return engine


class _Connection(psycopg.AsyncConnection[Any]):
    """Its options are set even if the task is cancelled meanwhile, which then happens at the task's next `await`.

    SQLAlchemy sets them between taking a connection from the pool and handing it out: an error there would
    leave the connection to the garbage collector.
    """

    async def set_autocommit(self, value: bool) -> None:
        await _cancelled_later(super().set_autocommit(value))

    async def set_isolation_level(self, value: psycopg.IsolationLevel | None) -> None:
        await _cancelled_later(super().set_isolation_level(value))


async def _cancelled_later(step: Awaitable[None]) -> None:
    try:
        await step
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
            task.cancel(*error.args)


def _set_up(connection: Any, idle: str) -> None:
    """Have PostgreSQL free the locks of a lost host after a minute, not after its system's two hours.

    Not in the options of the URL, because poolers such as PgBouncer refuse those. No effect on a Unix socket.
    Through a pooler, nothing is prepared: the next statement may be another server connection's.
    """
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(_SET_UP, (idle,))
    driver = connection.driver_connection
    if cursor.fetchone()[0] != driver.info.backend_pid:
        driver.prepare_threshold = None
    cursor.close()
    connection.autocommit = False


def _check_idle(connection: Any, record: ConnectionPoolEntry, dialect: Dialect) -> None:
    """Replace all connections if one that was idle is dead. One in steady use is spared the round trip."""
    idle = time.monotonic() - record.info.get(_USED, math.inf)  # a new connection works
    try:
        if connection.closed or (idle > _IDLE_SECONDS and not dialect.do_ping(connection)):
            raise InvalidatePoolError
    except dialect.loaded_dbapi.Error as error:
        raise InvalidatePoolError from error


@asynccontextmanager
async def autocommit(sessions: Sessions) -> AsyncIterator[AsyncSession]:
    """A session that commits each statement by itself, so that a process which stops between two holds no lock."""
    async with sessions() as session:
        await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        yield session


@asynccontextmanager
async def direct(sessions: Sessions) -> AsyncIterator[Handle]:
    """For statements that each are a transaction, without the cost of a session or of BEGIN and COMMIT.

    Sessions on a connection of their caller's share its transaction.
    """
    engine = sessions.kw["info"].get(_AUTOCOMMIT)
    if engine is None:
        async with sessions.begin() as session:
            yield session
    else:
        async with engine.connect() as connection:
            yield connection


def reading(sessions: Sessions) -> AsyncSession:
    """A session for queries that need no common transaction: each is one, without BEGIN and ROLLBACK."""
    engine = sessions.kw["info"].get(_AUTOCOMMIT)
    return sessions() if engine is None else sessions(bind=engine)


async def retry_while_unavailable(write: Callable[[], Awaitable[None]]) -> None:
    """Write what cannot be had again, with retries for 30 seconds. The write must be safe to repeat.

    Raises UNAVAILABLE if the database does not answer until then.
    """
    until = time.monotonic() + _RETRY_SECONDS
    while True:
        try:
            return await write()
        except UNAVAILABLE:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


async def execute(handle: Handle, statement: Executable, values: Mapping[str, Any]) -> CursorResult[Any]:
    """Execute a statement of the core with prepared parameters. Returns rows, not entities."""
    if isinstance(handle, AsyncSession):
        await handle.flush()
        handle = await handle.connection()
    return await handle.execute(statement, values)


def full_url(url: str) -> str:
    """The URL with our driver, from postgres://, postgresql:// or postgresql+psycopg://."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise DatabaseError(f"DATABASE_URL cannot be parsed: {error}") from error
    if parsed.drivername.split("+")[0] not in ("postgres", "postgresql"):
        raise DatabaseError(f"DATABASE_URL has the scheme {parsed.drivername}; only postgresql:// is supported")
    return parsed.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)


def refused(url: str, error: DBAPIError) -> DatabaseError:
    reason = first_line(error.orig or error)
    return DatabaseError(
        f"PostgreSQL at {url} refused the connection: {reason}. Check DATABASE_URL and that the server runs"
    )


class CleanText(TypeDecorator[str]):
    """Text with characters that cannot be stored replaced, so that unusual output never fails a task."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else clean_text(value)


def clean_text(value: str) -> str:
    r"""Replace NUL and lone surrogates.

    >>> clean_text("a\x00b")
    'a�b'
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value.replace("\x00", _REPLACEMENT)


def to_json(value: Json) -> str:
    """Serialize for JSONB columns. NaN and infinities become null.

    >>> to_json({"total": float("nan")})
    '{"total": null}'
    """
    return json.dumps(_clean(value))


def pack(record: msgspec.Struct) -> bytes:
    """Encode as msgpack. Changes only values that msgpack cannot represent."""
    try:
        return msgspec.msgpack.encode(record)
    except (UnicodeEncodeError, OverflowError):
        return msgspec.msgpack.encode(_clean(msgspec.to_builtins(record), max_bits=63))


def _clean(value: Json, max_bits: int | None = None) -> Json:
    """Integers of more than `max_bits` become text."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if max_bits is None or value.bit_length() <= max_bits else str(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(each, max_bits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each, max_bits) for each in value]
    return value
