"""The migrations: upgrades, refusals and failures."""

import threading
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import NullPool, create_engine, inspect, text
from sqlalchemy.exc import ProgrammingError

from app.base.errors import DatabaseError
from app.db.migrate import alembic_config, migrate
from tests.support.every_row import every_row
from tests.support.next_version import install_next_version


def _tables(url: str) -> set[str]:
    engine = create_engine(url, poolclass=NullPool)
    return set(inspect(engine).get_table_names())


def test_models_and_migrations_agree(database_url: str) -> None:
    with create_engine(database_url, poolclass=NullPool).begin() as connection:
        command.check(alembic_config(connection))  # raises if a migration is missing


def test_the_schema_can_be_downgraded_and_upgraded_again(empty_database_url: str) -> None:
    migrate(empty_database_url)
    before = _tables(empty_database_url)
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        command.downgrade(alembic_config(connection), "base")
    assert _tables(empty_database_url) == {"alembic_version"}
    migrate(empty_database_url)
    assert _tables(empty_database_url) == before
    assert "tasks" in before


def _rows(url: str, query: str) -> list[object]:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        return [*connection.scalars(text(query))]


def _execute(url: str, statement: str) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(statement))


_PROJECT = "INSERT INTO projects (id, name, skill_rev) VALUES (gen_random_uuid(), 'safety', 0)"
_MOTTOES = "SELECT motto FROM projects"
_REVISION = "SELECT version_num FROM alembic_version"


def test_an_upgrade_keeps_the_rows_and_can_be_taken_back(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    migrate(empty_database_url)
    (before,) = _rows(empty_database_url, _REVISION)
    _execute(empty_database_url, _PROJECT)
    install_next_version(monkeypatch, tmp_path)
    migrate(empty_database_url)
    assert _rows(empty_database_url, _MOTTOES) == ["safety first"]
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        command.downgrade(alembic_config(connection), str(before))
    assert _rows(empty_database_url, "SELECT name FROM projects") == ["safety"]
    with pytest.raises(ProgrammingError, match="motto"):
        _rows(empty_database_url, _MOTTOES)


def test_a_failing_migration_leaves_nothing_behind(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    migrate(empty_database_url)
    before = _rows(empty_database_url, _REVISION)
    install_next_version(monkeypatch, tmp_path, more='op.execute("SELECT nonsense")')
    with pytest.raises(ProgrammingError, match="nonsense"):
        migrate(empty_database_url)
    assert _rows(empty_database_url, _REVISION) == before
    with pytest.raises(ProgrammingError, match="motto"):
        _rows(empty_database_url, _MOTTOES)


def test_a_migration_whose_process_is_gone_changes_nothing_and_the_next_one_succeeds(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Killed, it takes its connection with it; here, PostgreSQL ends the connection."""
    migrate(empty_database_url)
    _execute(empty_database_url, _PROJECT)
    before = _rows(empty_database_url, _REVISION)
    with monkeypatch.context() as patch:
        install_next_version(patch, tmp_path, more='op.execute("SELECT pg_sleep(300)")')
        killed = threading.Thread(target=_migrate_in_vain, args=[empty_database_url])
        killed.start()
        while not any(_rows(empty_database_url, _KILL)):
            assert killed.is_alive()
        killed.join()
    assert _rows(empty_database_url, _REVISION) == before
    install_next_version(monkeypatch, tmp_path)
    migrate(empty_database_url)
    assert _rows(empty_database_url, _MOTTOES) == ["safety first"]


def _migrate_in_vain(url: str) -> None:
    with pytest.raises(DatabaseError):
        migrate(url)


_KILL = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND query = 'SELECT pg_sleep(300)'
"""


def test_a_schema_of_before_the_first_release_is_refused_and_left_alone(empty_database_url: str) -> None:
    migrate(empty_database_url)
    tables = _tables(empty_database_url)

    with every_row() as row:
        for revision in ("0001", "0019", "0071"):
            with row(revision):
                _execute(empty_database_url, f"UPDATE alembic_version SET version_num = '{revision}'")
                with pytest.raises(DatabaseError, match=f"has schema {revision}, of a version before 0.1.0"):
                    migrate(empty_database_url)
                assert _rows(empty_database_url, _REVISION) == [revision]
                assert _tables(empty_database_url) == tables


def test_a_newer_schema_is_refused_and_left_alone(empty_database_url: str) -> None:
    migrate(empty_database_url)
    with create_engine(empty_database_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '2099'"))
    with pytest.raises(DatabaseError, match="2099, which this version does not know"):
        migrate(empty_database_url)


def test_two_processes_may_migrate_at_once(empty_database_url: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate(empty_database_url)
        except Exception as error:  # noqa: BLE001 - a thread would lose it
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert "tasks" in _tables(empty_database_url)


def test_a_refused_connection_is_described_in_one_line() -> None:
    with pytest.raises(DatabaseError, match=r"refused the connection: .*Check DATABASE_URL") as caught:
        migrate("postgresql://nobody@127.0.0.1:1/nothing")
    assert "\n" not in str(caught.value)
