"""The configured database, as commands and `sage up` use it."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from app.base.errors import DatabaseError
from app.base.settings import Settings
from app.db import postgres
from app.machine.local_database import DataDirLockedError, lock_data_dir, run_database, use_database
from tests.support.ledger_project import until
from tests.support.processes import alive, gone


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A short path that the operating-system user of PostgreSQL can access."""
    parent = Path(tempfile.mkdtemp(prefix="sage-local-"))
    yield parent / "data"
    postgres.stop(parent / "data" / "postgres")
    shutil.rmtree(parent)


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "postmaster.pid").read_text().split()[0])


def answers(url: str) -> bool:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return connection.scalar(text("SELECT count(*) FROM projects")) is not None


async def test_a_command_stops_the_database_that_it_started(data_dir: Path) -> None:
    with use_database(Settings(data_dir=data_dir)) as url:
        assert answers(url)
        pid = postmaster(data_dir)
    await gone([pid])


async def test_a_command_does_not_stop_the_database_of_a_running_server(data_dir: Path) -> None:
    settings = Settings(data_dir=data_dir)
    with lock_data_dir(data_dir):
        async with run_database(settings):
            pid = postmaster(data_dir)
            with use_database(settings) as url:
                assert answers(url)
            assert alive(pid)
    await gone([pid])


async def test_a_killed_database_is_restarted(data_dir: Path) -> None:
    async with run_database(Settings(data_dir=data_dir)) as url:
        first = postmaster(data_dir)
        os.kill(first, signal.SIGKILL)

        async def is_restarted() -> bool:
            try:
                status = (data_dir / "postgres" / "postmaster.pid").read_text()  # possibly half written
            except FileNotFoundError:
                return False
            return "ready" in status and int(status.split()[0]) != first

        await until(is_restarted)
        assert answers(url)


async def test_a_stale_process_id_of_a_dead_server_harms_no_other_process(data_dir: Path) -> None:
    with use_database(Settings(data_dir=data_dir)):
        path = data_dir / "postgres" / "postmaster.pid"
        stale_file = path.read_text()
        lock = Path(stale_file.splitlines()[4]) / ".s.PGSQL.5432.lock"
        stale_lock = lock.read_text()
    stale = "\n".join([str(os.getpid()), *stale_file.splitlines()[1:]]) + "\n"
    path.write_text(stale)
    postgres.stop(data_dir / "postgres")  # would end this process
    owner = path.parent.stat().st_uid
    with subprocess.Popen(["sleep", "600"], user=owner) as unrelated:  # noqa: ASYNC220
        for file, text_before in ((path, stale_file), (lock, stale_lock)):
            file.write_text("\n".join([str(unrelated.pid), *text_before.splitlines()[1:]]) + "\n")
        with use_database(Settings(data_dir=data_dir)) as url:
            assert answers(url)
        assert unrelated.poll() is None
        unrelated.kill()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_a_copy_that_belongs_to_another_user_says_whom_it_must_belong_to(data_dir: Path, tmp_path: Path) -> None:
    with use_database(Settings(data_dir=data_dir)):
        pass
    copy = tmp_path / "copy"
    shutil.copytree(data_dir / "postgres", copy)
    with pytest.raises(DatabaseError, match=rf"does not belong to \w+, as whom .*: chown -R \w+ {copy}"):
        postgres.start(copy)


class SlowServer:
    """Gives up in time, as the wheel does, before there is a log, which it reads then."""

    def __init__(self, log: Path) -> None:
        self.tries, self._log, self._lock = 0, log, nullcontext()

    def start(self) -> None:
        self.tries += 1
        try:
            if self.tries == 1:
                raise subprocess.TimeoutExpired("pg_ctl", 10)
        except subprocess.SubprocessError:
            self._log.read_text()
            raise


def test_a_database_that_has_no_log_yet_is_waited_for(tmp_path: Path) -> None:
    server = SlowServer(tmp_path / "log")
    postgres._wait_for(server, tmp_path)
    assert server.tries == 2


def test_only_one_process_can_lock_a_data_directory(tmp_path: Path) -> None:
    with (
        lock_data_dir(tmp_path),
        pytest.raises(DataDirLockedError, match="another `sage up` uses"),
        lock_data_dir(tmp_path),
    ):
        pass
    with lock_data_dir(tmp_path):
        pass


def test_a_schema_of_a_newer_version_is_refused(empty_database_url: str) -> None:
    settings = Settings(database_url=empty_database_url)
    with use_database(settings):
        pass
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_the_future'"))
    with (
        pytest.raises(DatabaseError, match=r"from_the_future.*install the newer version"),
        use_database(settings),
    ):
        pass
