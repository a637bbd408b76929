"""The PostgreSQL server of a run of the tests: TEST_DATABASE_URL, else one of our own, shared by its workers."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from uuid import uuid4

from sqlalchemy import Connection, NullPool, create_engine, make_url, text

from app.base.errors import DatabaseError
from app.db import postgres
from app.db.database import full_url
from app.db.migrate import migrate

RUN = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()  # the process all workers come from
_MEMORY = Path("/dev/shm")  # files that come and go cost a file system more than most queries do
_ROOM = 4 << 30
_PARENT = _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).total > _ROOM else Path(tempfile.gettempdir())
_DIRECTORY = _PARENT / f"sage-test-{RUN}" / "postgres"  # a short path: it holds a socket
_MIGRATED = f"migrated_{RUN}"
_CONNECTIONS = 400  # each of five workers may have two pools of 30


def start() -> str:
    """The URL of the server, on which tests may create databases. The first call of a run starts it."""
    given = os.environ.get("TEST_DATABASE_URL")
    if given:
        return full_url(given)
    _remove_left()
    _DIRECTORY.parent.mkdir(exist_ok=True)
    with (_DIRECTORY.parent / "starting").open("w") as file:
        flock(file, LOCK_EX)  # until the file is closed: the first worker restarts it
        url = postgres.start(_DIRECTORY, connections=_CONNECTIONS)
    with _connection(url) as connection:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):  # durability is not needed
            connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
        connection.execute(text("SELECT pg_reload_conf()"))
    return url


def stop() -> None:
    """After the run, in the process that the workers come from."""
    if given := os.environ.get("TEST_DATABASE_URL"):
        with _connection(full_url(given)) as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {_MIGRATED}"))
    else:
        postgres.stop(_DIRECTORY)
        shutil.rmtree(_DIRECTORY.parent, ignore_errors=True)


def _remove_left() -> None:
    """What runs left that were killed."""
    for left in _PARENT.glob("sage-test-*"):
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            with suppress(DatabaseError):
                postgres.stop(left / "postgres")
            shutil.rmtree(left, ignore_errors=True)


def empty_database(server_url: str) -> Iterator[str]:
    """Yields the URL of a new database without a schema, which is dropped afterwards."""
    yield from _new_database(server_url, "template1")


def migrated_database(server_url: str) -> Iterator[str]:
    """As `empty_database`, with the schema: a copy of one that the migrations made once for all workers."""
    unfinished = f"unfinished_{RUN}"
    with _connection(server_url) as connection:
        connection.execute(text("SELECT pg_advisory_lock(:run)"), {"run": RUN})
        if not connection.scalar(text("SELECT 1 FROM pg_database WHERE datname = :name"), {"name": _MIGRATED}):
            connection.execute(text(f"CREATE DATABASE {unfinished}"))
            migrate(_named(server_url, unfinished))
            connection.execute(text(f"ALTER DATABASE {unfinished} RENAME TO {_MIGRATED}"))
    yield from _new_database(server_url, _MIGRATED)


def _new_database(server_url: str, template: str) -> Iterator[str]:
    name = f"test_{uuid4().hex[:12]}"
    with _connection(server_url) as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy"))
    yield _named(server_url, name)
    with _connection(server_url) as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))


def _named(server_url: str, name: str) -> str:
    return make_url(server_url).set(database=name).render_as_string(hide_password=False)


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection
