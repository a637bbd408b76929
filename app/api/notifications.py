"""Wakes event streams when their task or training run has news, the runner when there is work, and the hot swap.

One LISTEN connection per process hears of all that, whichever process it came from.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self
from uuid import UUID

import psycopg
import structlog

from app.db import events, releases, runs, tasks
from app.db.database import full_url

log = structlog.get_logger(__name__)

_PAUSE = 1.0  # seconds before the next try to connect, and between looks while there is no connection


class EventFeed:
    """A hint, not a channel: the events themselves are read from their table, so a lost notice costs only time."""

    def __init__(self, database_url: str, *, ping_seconds: float = 15.0) -> None:
        self.ping_seconds = ping_seconds  # a stream without news looks again, and says that it lives
        self._url = full_url(database_url).replace("postgresql+psycopg://", "postgresql://", 1)
        self._streams: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._listening: asyncio.Task[None] | None = None
        self._at_work: Callable[[], None] = lambda: None
        self._at_release: list[Callable[[], None]] = []

    def call_at_work(self, wake: Callable[[], None]) -> None:
        """From now on `wake` is called whenever there may be a task to claim."""
        self._at_work = wake

    def call_at_release(self, wake: Callable[[], None]) -> None:
        """From now on `wake`, too, is called whenever a release may have changed."""
        self._at_release.append(wake)

    async def __aenter__(self) -> Self:
        self._listening = asyncio.create_task(self._listen_for_ever(), name="event feed")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listening is not None:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening

    @contextmanager
    def subscribe(self, followed: UUID) -> Iterator[asyncio.Event]:
        """An event that is set whenever the task, or the training run, may have news."""
        news = asyncio.Event()
        self._streams[followed].add(news)
        try:
            yield news
        finally:
            self._streams[followed].discard(news)
            if not self._streams[followed]:
                del self._streams[followed]

    async def wait(self, news: asyncio.Event) -> bool:
        """False: there was none for so long that a stream should say that it lives."""
        try:
            async with asyncio.timeout(self.ping_seconds):
                await news.wait()
        except TimeoutError:
            return False
        return True

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError) as error:
                log.warning("event streams fall back to polling", cause=str(error).strip())
            except Exception:  # the last resort: else nobody would be woken any more
                log.exception("event streams fall back to polling")
            await asyncio.sleep(_PAUSE)
            self._wake_all()

    async def _listen(self) -> None:
        async with await self._connect() as connection:
            for channel in (tasks.CHANNEL, releases.CHANNEL, runs.CHANNEL, events.CHANNEL):
                await connection.execute(f"LISTEN {channel}")
            self._wake_all()  # something may have happened while nobody listened
            async for notice in connection.notifies():
                if notice.channel == tasks.CHANNEL:
                    self._at_work()
                elif notice.channel == releases.CHANNEL:
                    self._call_at_release()
                else:
                    self._wake(notice.payload)

    async def _connect(self) -> psycopg.AsyncConnection:
        """It only listens, so nothing but these would tell within a minute that its host is lost."""
        return await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, keepalives_idle=30, keepalives_interval=10, keepalives_count=3
        )

    def _wake(self, payload: str) -> None:
        with suppress(ValueError):
            for news in self._streams.get(UUID(payload), ()):
                news.set()

    def _call_at_release(self) -> None:
        for wake in self._at_release:
            wake()

    def _wake_all(self) -> None:
        self._at_work()
        self._call_at_release()
        for streams in self._streams.values():
            for news in streams:
                news.set()
