"""The configured database, for `sage up` and for one command: the one at DATABASE_URL, or the embedded PostgreSQL
of the data directory, which one `sage up` locks; and what other commands must know of the settings that it was
started with.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import click
import msgspec
from sqlalchemy import make_url

from app.base.errors import ConflictError, DatabaseError, SettingError
from app.base.files import exclusive_lock, write_private
from app.base.loop import Loop
from app.base.settings import Settings
from app.db import postgres
from app.db.encrypted_rows import prepare_secrets
from app.db.migrate import migrate

_WATCH_SECONDS = 1.0
_RETRY_SECONDS = 3.0

T = TypeVar("T")


class DataDirLockedError(ConflictError):
    """Another process uses this data directory."""


@contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Create the directory, and lock it until the block or this process ends.

    Raises DataDirLockedError if another process holds the lock, and SettingError if it cannot be written.
    """
    taken = DataDirLockedError(f"another `sage up` uses {data_dir}: stop it, or set SAGE_DATA_DIR")
    with exclusive_lock(data_dir / "up.lock", taken):
        yield


class RunningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Those of the model and its servers, as in `Settings`."""

    model: str
    model_url: str
    prompt_profile: str
    chat_template_kwargs: str
    engine_urls: str
    engine_port: int
    has_model_key: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        same = {name: getattr(settings, name) for name in cls.__struct_fields__ if name != "has_model_key"}
        return cls(**same, has_model_key=bool(settings.model_key))

    @classmethod
    def find(cls, data_dir: Path) -> Self | None:
        """Of the `sage up` that runs with this data directory, as the caller has made sure; None if it cannot be
        read, or has not come so far.
        """
        try:
            return msgspec.json.decode(_file(data_dir).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def apply(self, settings: Settings) -> Settings:
        """The settings of another process, as if they were given these."""
        own = {name: value for name, value in msgspec.structs.asdict(self).items() if name != "has_model_key"}
        return msgspec.structs.replace(settings, **own)


@contextmanager
def noted_settings(settings: Settings) -> Iterator[None]:
    """Has `RunningSettings.find` find them meanwhile. Raises StorageError if the file cannot be written."""
    path = _file(settings.data_dir)
    write_private(path, msgspec.json.encode(RunningSettings.of(settings)).decode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _file(data_dir: Path) -> Path:
    return data_dir / "up.json"


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
        url = await _finish(lambda: postgres.start(directory, _connections(settings)))
        await _finish(lambda: _migrate(url, settings))
        async with Loop("PostgreSQL watcher", partial(_restart_if_dead, directory, _socket(url)), _WATCH_SECONDS):
            yield url
    finally:
        await _finish(lambda: postgres.stop(directory))


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
            stack.callback(postgres.stop, directory)
        except DataDirLockedError:
            click.echo("using the database of the running `sage up`", err=True)
        yield postgres.start(directory)


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
            yield postgres.start(directory)
        finally:
            postgres.stop(directory)


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
        await _finish(lambda: postgres.start(directory))
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
