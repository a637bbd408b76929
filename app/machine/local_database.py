"""The database that the settings mean: the one DATABASE_URL names, or the embedded one of this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import click
from sqlalchemy import make_url

from app.db import embedded_postgres
from app.db.migrate import migrate
from app.errors import DatabaseError
from app.machine.data_dir_lock import HeldError, hold
from app.machine.logs import make_room
from app.settings import Settings

_WATCH_SECONDS = 1.0
_RETRY_SECONDS = 2.0

T = TypeVar("T")


@asynccontextmanager
async def keep_database(settings: Settings) -> AsyncIterator[str]:
    """Its URL, migrated. The embedded one is started again where it dies, and stopped at the end.

    Raises DatabaseError. The caller holds the data directory.
    """
    if settings.database_url:
        await _finish(lambda: migrate(settings.database_url))
        yield settings.database_url
        return
    directory = _directory(settings)
    make_room(directory / "log")
    try:
        url = await _finish(lambda: embedded_postgres.start(directory))
        await _finish(lambda: migrate(url))
        watcher = asyncio.create_task(_watch(directory, _socket(url)))
        try:
            yield url
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
    finally:
        await _finish(lambda: embedded_postgres.stop(directory))


@contextmanager
def lend_database(settings: Settings) -> Iterator[str]:
    """Its URL, migrated, for one command. Where `sage up` runs, that one's is used; else it runs for the block."""
    if settings.database_url:
        migrate(settings.database_url)
        yield settings.database_url
        return
    directory = _directory(settings)
    with ExitStack() as stack:
        try:
            stack.enter_context(hold(settings.data_dir))
            stack.callback(embedded_postgres.stop, directory)
        except HeldError:
            click.echo("using the database of the `sage up` that runs", err=True)
        url = embedded_postgres.start(directory)
        migrate(url)
        yield url


def _directory(settings: Settings) -> Path:
    return settings.data_dir.absolute() / "postgres"


async def _watch(directory: Path, address: str) -> None:
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        if not _listens(address):
            click.echo("PostgreSQL died. It starts again", err=True)
            try:
                await _finish(lambda: embedded_postgres.start(directory))
            except DatabaseError as error:
                click.echo(str(error), err=True)
                await asyncio.sleep(_RETRY_SECONDS)


def _listens(address: str) -> bool:
    """Asked of the socket, because a dead process may keep its number where nobody reaps it."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


def _socket(url: str) -> str:
    return f"{make_url(url).query['host']}/.s.PGSQL.5432"


async def _finish(work: Callable[[], T]) -> T:
    """In a thread, waited for to its end also when cancelled: what it starts must be there to be stopped."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
