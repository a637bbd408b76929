"""What the database refuses is told apart from a database that is away."""

import json

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError

from app.db.database import TRANSIENT, UNAVAILABLE, Sessions, retry_while_unavailable
from tests.support.lost_connection import lose_connection

_DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("statement", "value", "kind"),
    [
        ("SELECT CAST(:value AS integer)", str(2**53), DataError),
        ("SELECT CAST(:value AS jsonb)", json.dumps("\x00"), DataError),
        ("SELECT CAST(:value AS jsonb)", _DEEP, DataError),
        ("SELECT repeat(:value, 500000000)", "abc", DataError),
        ("INSERT INTO task_events (task_id, seq, kind, data) VALUES (:value, 1, '', '{}')", "{}", DataError),
        ("INSERT INTO task_events (task_id) VALUES (gen_random_uuid())", None, IntegrityError),
        ("SELECT nothing", None, ProgrammingError),
    ],
)
async def test_what_is_refused_is_not_taken_for_a_database_that_is_away(
    statement: str, value: str | None, kind: type[Exception], sessions: Sessions
) -> None:
    async with sessions() as session:
        with pytest.raises(kind) as raised:
            await session.execute(text(statement), {} if value is None else {"value": value})
    assert not isinstance(raised.value, TRANSIENT)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("SELECT 1", "SELECT pg_terminate_backend(pg_backend_pid())"),
        ("SET TRANSACTION READ ONLY", "CREATE TABLE not_here (id int)"),
    ],
)
async def test_a_lost_connection_and_a_lost_primary_are_a_database_that_is_away(
    first: str, then: str, committed: Sessions
) -> None:
    async with committed() as session:
        await session.execute(text(first))
        with pytest.raises(UNAVAILABLE):
            await session.execute(text(then))


async def test_a_write_is_repeated_when_its_connection_is_lost_but_not_when_it_is_refused(
    committed: Sessions,
) -> None:
    tries: list[str] = []

    async def write(statement: str) -> None:
        tries.append(statement)
        async with committed.begin() as session:
            await session.execute(text(statement))

    lose_connection(committed, "SELECT 1")
    await retry_while_unavailable(lambda: write("SELECT 1"))
    with pytest.raises(ProgrammingError):
        await retry_while_unavailable(lambda: write("SELECT nothing"))
    assert tries == ["SELECT 1", "SELECT 1", "SELECT nothing"]
