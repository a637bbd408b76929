"""What the manual says about erased rows on the disk of the database: where they stay, and what ends that."""

import re
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest

from app.db import postgres
from tests.machine.test_local_database import data_dir as data_dir  # a fixture

MARK = "erased-7f3a91"
MANUAL = Path(__file__).parents[2] / "app" / "manual" / "operations.md"


def statements() -> list[str]:
    """The block of SQL in the manual."""
    (block,) = re.findall(r"```sql\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    return re.findall(r"\s*(DO \$\$.*?\$\$;|[^;]+;)", block, re.DOTALL)


def execute(url: str, commands: Sequence[str]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for each in commands:
            connection.execute(each.encode())


def holding(directory: Path) -> set[str]:
    """The directories of PostgreSQL with files in which the erased row can be read."""
    found = set()
    for path in directory.rglob("*"):
        if path.is_file() and MARK.encode() in path.read_bytes():
            found.add(path.relative_to(directory).parts[0])
    return found


@pytest.mark.slow
def test_erased_rows_stay_in_pages_and_in_the_log_until_the_statements_of_the_manual(data_dir: Path) -> None:
    directory = data_dir / "postgres"
    url = postgres.start(directory).replace("+psycopg", "")
    erase = [
        "CREATE TABLE task (id int, said text)",
        "INSERT INTO task SELECT n, 'other' FROM generate_series(1, 20) n",
        f"INSERT INTO task VALUES (1000, '{MARK}' || repeat('x', 1000))",
        "CHECKPOINT",
        "DELETE FROM task WHERE id = 1000",
        "VACUUM task",
        "CHECKPOINT",
    ]
    execute(url, erase)
    assert holding(directory) == {"base", "pg_wal"}
    execute(url, statements())
    assert holding(directory) == set()
