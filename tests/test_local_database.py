"""The embedded database as commands and the supervisor borrow it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from app.db import embedded_postgres
from app.errors import DatabaseError
from app.machine.data_dir_lock import HeldError, hold
from app.machine.local_database import keep_database, lend_database
from app.settings import Settings
from tests.ledger_project import until
from tests.processes import alive, gone


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A short path that the user PostgreSQL runs as can reach."""
    parent = Path(tempfile.mkdtemp(prefix="sage-local-"))
    yield parent / "data"
    embedded_postgres.stop(parent / "data" / "postgres")
    shutil.rmtree(parent)


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])


def answers(url: str) -> bool:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM projects")) is not None


async def test_a_command_leaves_no_database_behind_that_it_started(data_dir: Path) -> None:
    with lend_database(Settings(data_dir=data_dir)) as url:
        assert answers(url)
        pid = postmaster(data_dir)
    await gone([pid])


async def test_a_command_leaves_the_database_of_a_running_server_alone(data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir)
    with hold(data_dir):
        async with keep_database(settings):
            pid = postmaster(data_dir)
            with lend_database(settings) as url:
                assert answers(url)
            assert alive(pid)
    assert not alive(pid)


async def test_a_kept_database_that_is_killed_comes_back(data_dir: Path) -> None:
    async with keep_database(Settings(data_dir=data_dir)) as url:
        first = postmaster(data_dir)
        os.kill(first, signal.SIGKILL)

        async def is_back() -> bool:
            path = data_dir / "postgres" / "postmaster.pid"
            told = path.read_text() if path.exists() else ""  # while it is written, less than a line
            return "ready" in told and postmaster(data_dir) != first

        await until(is_back, 30)
        assert answers(url)


async def test_a_number_left_by_a_dead_server_harms_no_stranger_who_has_it_now(data_dir: Path) -> None:
    with lend_database(Settings(data_dir=data_dir)):
        path = data_dir / "postgres" / "postmaster.pid"
        left = path.read_text()
    stale = "\n".join([str(os.getpid()), *left.splitlines()[1:]]) + "\n"
    path.write_text(stale)
    embedded_postgres.stop(data_dir / "postgres")  # would end this process
    path.write_text(stale)
    with lend_database(Settings(data_dir=data_dir)) as url:
        assert answers(url)


def test_one_data_directory_is_kept_by_one_process(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(HeldError, match="another `sage up` runs"), hold(tmp_path):
        pass
    with hold(tmp_path):
        pass


def test_a_schema_of_a_newer_version_is_refused(empty_database_url: str) -> None:
    settings = Settings(database_url=empty_database_url)
    with lend_database(settings):
        pass
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))
    with (
        pytest.raises(DatabaseError, match=r"from_the_future.*install the newer version"),
        lend_database(settings),
    ):
        pass
