"""The manual's commands for backups do what it shows."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, text

from app.base.settings import Settings
from app.db import postgres
from app.db.encrypted_rows import prepare_secrets
from app.machine.local_database import use_database
from tests.support.page_commands import ANYTHING, Shell, commands, matches

_PAGE = Path(__file__).parents[2] / "app/manual/operations.md"


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path that the operating-system user of PostgreSQL can access."""
    made = Path(tempfile.mkdtemp(prefix="sage-"))
    yield made
    for each in ("data", "restored"):
        postgres.stop(made / each / "postgres")
    shutil.rmtree(made)


@pytest.mark.slow
def test_the_commands_back_up_and_restore_into_both_kinds_of_database(
    directory: Path, empty_database_url: str
) -> None:
    settings = Settings(data_dir=directory / "data")
    with use_database(settings) as url:
        prepare_secrets(url, settings)
        _execute(url, "INSERT INTO projects (id, name, skill_rev) VALUES (gen_random_uuid(), 'mine', 0)")
    section = _PAGE.read_text().partition("## Back up")[2].partition("\n## ")[0]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "DATABASE_URL": "", "SAGE_DATA_DIR": str(settings.data_dir)}
    with Shell(directory, env) as shell:
        for each in commands(section):
            typed = re.sub(r"DATABASE_URL=\S+", f"DATABASE_URL='{empty_database_url}'", each.text)
            output, status = shell.run(typed)
            assert status == 0, output
            assert matches(output, each.output or ANYTHING), output
    assert [each.text.split()[-2] for each in commands(section)] == ["backup", "restore", "restore"]
    with use_database(Settings(data_dir=directory / "restored")) as url:
        assert _names(url) == ["mine"]
    assert _names(empty_database_url) == ["mine"]
    assert (directory / "external" / "secret.key").read_text() == (settings.data_dir / "secret.key").read_text()


def _execute(url: str, statement: str) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(statement))


def _names(url: str) -> list[str]:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return list(connection.scalars(text("SELECT name FROM projects")))
