"""Listens for PostgreSQL notifications: wakes event streams, the runner and the followers of the active release.

One LISTEN connection per process receives all of them, whichever process sent them. A pooler such as
PgBouncer in transaction mode hands a connection on after each transaction, and notifications and session
locks are bound to one: they need `DATABASE_DIRECT_URL`. A pooler shows itself by the process id that it gives
its clients, which is not that of a server process.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import psycopg
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import SettingError
from app.base.loop import Loop, Looping
from app.base.settings import Settings
from app.db.database import full_url

PART = "notifications"
TASKS = "sage_tasks"  # tasks may be claimed
RELEASES = "sage_releases"  # a release changed; its id is the payload
RUNS = "sage_runs"  # a run changed; its id is the payload
EVENTS = "sage_events"  # a task has new events; its id is the payload. Sent by the function `append_task_events`
_RETRY_SECONDS = 1.0  # between attempts to connect, and until then everyone's polling interval

Callback = Callable[[], None]
NEEDS_DIRECT = (
    "DATABASE_URL goes through a pooler, and notifications and locks need a connection of their own: set "
    "DATABASE_DIRECT_URL to the address of PostgreSQL itself"
)
_CONNECT_SECONDS = 3
_PID = "SELECT pg_backend_pid()"


async def notify(session: AsyncSession, channel: str, payload: object = "") -> None:
    """Tell every process, once this transaction is committed."""
    await session.execute(select(func.pg_notify(channel, str(payload))))


class NotificationListener(Looping):
    """Notifications are hints: the data is read from the tables, so a lost one costs only time."""

    def __init__(self, database_url: str, *, ping_seconds: float = 15.0, pooler: bool = False) -> None:
        """`pooler`: the URL may lead through one, which then has to be in session mode."""
        self.ping_seconds = ping_seconds  # an event stream without news reads again, and sends a comment
        self._url, self._pooler = plain_url(database_url), pooler
        self._streams: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._task_callbacks: list[Callback] = []
        self._release_callbacks: list[Callback] = []
        connection_errors = (psycopg.Error, OSError, SettingError)
        self._loop = Loop(
            "notification listener", self._connect, _RETRY_SECONDS, expected=connection_errors, part=PART
        )

    def on_task(self, callback: Callback) -> None:
        """Call back whenever there may be a task to claim or to cancel."""
        self._task_callbacks.append(callback)

    def on_release(self, callback: Callback) -> None:
        """Call back whenever a release may have changed."""
        self._release_callbacks.append(callback)

    @contextmanager
    def subscribe(self, subject: UUID) -> Iterator[asyncio.Event]:
        """An event that is set whenever this task, or training run, may have news."""
        news = asyncio.Event()
        self._streams[subject].add(news)
        try:
            yield news
        finally:
            self._streams[subject].discard(news)
            if not self._streams[subject]:
                del self._streams[subject]

    async def wait(self, news: asyncio.Event) -> bool:
        """Wait for news. False if there was none within `ping_seconds`."""
        try:
            async with asyncio.timeout(self.ping_seconds):
                await news.wait()
        except TimeoutError:
            return False
        return True

    async def _connect(self) -> None:
        """Listen until the connection is lost. TCP keepalives detect a lost host within a minute."""
        try:
            async with await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, keepalives_idle=30, keepalives_interval=10, keepalives_count=3
            ) as connection:
                await self._listen(connection)
        finally:
            self._wake_all()  # while there is no connection, everyone polls

    async def _listen(self, connection: psycopg.AsyncConnection) -> None:
        if not self._pooler and await _passes_pooler(connection):
            raise SettingError(NEEDS_DIRECT)
        for channel in (TASKS, RELEASES, RUNS, EVENTS):
            await connection.execute(f"LISTEN {channel}")
        self._loop.recover()
        self._wake_all()  # for what was sent before this connection listened
        async for notification in connection.notifies():
            if notification.channel == TASKS:
                _call(self._task_callbacks)
            elif notification.channel == RELEASES:
                _call(self._release_callbacks)
            else:
                with suppress(ValueError):  # not an id: sent by someone else
                    for news in self._streams.get(UUID(notification.payload), ()):
                        news.set()

    def _wake_all(self) -> None:
        _call(self._task_callbacks)
        _call(self._release_callbacks)
        for streams in self._streams.values():
            for news in streams:
                news.set()


def _call(callbacks: list[Callback]) -> None:
    for callback in callbacks:
        callback()


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


async def _passes_pooler(connection: psycopg.AsyncConnection) -> bool:
    """Of an open connection that commits each statement."""
    return await (await connection.execute(_PID)).fetchone() != (connection.info.backend_pid,)


def plain_url(url: str) -> str:
    """As the driver alone reads it."""
    return full_url(url).replace("postgresql+psycopg://", "postgresql://", 1)
