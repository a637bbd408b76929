"""The configured database: the one at DATABASE_URL, or the embedded PostgreSQL of this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import click
from sqlalchemy import make_url

from app.db import embedded_postgres
from app.db.encrypted_rows import prepare_secrets
from app.db.migrate import migrate
from app.errors import DatabaseError, SettingError
from app.loop import Loop
from app.machine.data_dir_lock import DataDirLockedError, lock_data_dir
from app.settings import Settings

_WATCH_SECONDS = 1.0
_RETRY_SECONDS = 3.0

T = TypeVar("T")


@asynccontextmanager
async def run_database(settings: Settings) -> AsyncIterator[str]:
    """The URL of the migrated database. An embedded one is restarted if it dies, and stopped at the end.

    Raises DatabaseError. The caller must hold the lock on the data directory.
    """
    if settings.database_url:
        await _finish(lambda: _migrate(settings.direct_url, settings))
        yield settings.database_url
        return
    directory = _directory(settings)
    try:
        url = await _finish(lambda: embedded_postgres.start(directory, _connections(settings)))
        await _finish(lambda: _migrate(url, settings))
        async with Loop("PostgreSQL watcher", partial(_restart_if_dead, directory, _socket(url)), _WATCH_SECONDS):
            yield url
    finally:
        await _finish(lambda: embedded_postgres.stop(directory))


@contextmanager
def use_database(settings: Settings) -> Iterator[str]:
    """The URL of the migrated database, for one command. The embedded one is started unless `sage up` runs it."""
    with use_unmigrated(settings) as url:
        migrate(url)
        yield url


@contextmanager
def use_existing(settings: Settings) -> Iterator[str]:
    """Like `use_database`. Raises SettingError where it would create a database: no server uses that one."""
    refuse_absent(settings)
    with use_database(settings) as url:
        yield url


def refuse_absent(settings: Settings) -> None:
    """Raises SettingError if no database is configured and the data directory has none."""
    if not settings.database_url and not _directory(settings).is_dir():
        raise SettingError(
            f"{settings.data_dir.absolute()} is no server's data directory: set SAGE_DATA_DIR to the one that "
            "`sage up` prints, or DATABASE_URL"
        )


@contextmanager
def use_unmigrated(settings: Settings) -> Iterator[str]:
    """Like `use_database`, with the schema that the database has."""
    if settings.database_url:
        yield settings.direct_url
        return
    directory = _directory(settings)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_data_dir(settings.data_dir))
            stack.callback(embedded_postgres.stop, directory)
        except DataDirLockedError:
            click.echo("using the database of the running `sage up`", err=True)
        yield embedded_postgres.start(directory)


@contextmanager
def use_stopped(settings: Settings) -> Iterator[str]:
    """The URL of a database that no `sage up` of this data directory uses, with the schema that it has.

    Raises DataDirLockedError.
    """
    with lock_data_dir(settings.data_dir):
        if settings.database_url:
            yield settings.direct_url
            return
        directory = _directory(settings)
        try:
            yield embedded_postgres.start(directory)
        finally:
            embedded_postgres.stop(directory)


def _migrate(url: str, settings: Settings) -> None:
    migrate(url)
    prepare_secrets(url, settings)


def _connections(settings: Settings) -> int:
    """For the API, the worker and people, and for each runner at its busiest."""
    return 50 + 16 * settings.runner_count


def _directory(settings: Settings) -> Path:
    return settings.data_dir.absolute() / "postgres"


async def _restart_if_dead(directory: Path, address: str) -> float | None:
    if _listens(address):
        return None
    click.echo("PostgreSQL died; restarting it", err=True)
    try:
        await _finish(lambda: embedded_postgres.start(directory))
    except DatabaseError as error:
        click.echo(str(error), err=True)
        return _RETRY_SECONDS
    return None


def _listens(address: str) -> bool:
    """Check the socket, because a dead process keeps its id until it is reaped."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


def _socket(url: str) -> str:
    return f"{make_url(url).query['host']}/.s.PGSQL.5432"


async def _finish(work: Callable[[], T]) -> T:
    """Run in a thread, and wait for the end even if cancelled: what it starts must be stopped afterwards."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
