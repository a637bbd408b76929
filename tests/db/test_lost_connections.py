"""Errors of a connection that was lost: some are neither the database's nor translated."""

from collections.abc import Callable
from operator import attrgetter

import psycopg
import pytest
from sqlalchemy import PoolProxiedConnection

from app.db.database import is_lost_connection, open_database


@pytest.mark.parametrize(
    "use", [lambda used: used.cursor(), lambda used: used.adapters], ids=["cursor", "adapters"]
)
async def test_what_uses_a_connection_that_is_gone_has_lost_it(
    database_url: str, use: Callable[[PoolProxiedConnection], object]
) -> None:
    async with open_database(database_url) as database, database.engine.connect() as connection:
        used = await connection.get_raw_connection()
        await connection.invalidate()
        with pytest.raises((AttributeError, AssertionError)) as caught:
            use(used)
    assert is_lost_connection(caught.value)


async def test_an_error_of_the_driver_that_is_not_translated_has_lost_the_connection(database_url: str) -> None:
    plain = database_url.replace("+psycopg", "")
    connection = await psycopg.AsyncConnection.connect(plain)
    await connection.close()
    with pytest.raises(psycopg.OperationalError) as caught:
        await connection.set_autocommit(True)
    assert is_lost_connection(caught.value)


@pytest.mark.parametrize("thing", [None, 7])
def test_a_defect_of_ours_is_no_lost_connection(thing: object) -> None:
    with pytest.raises(AttributeError) as caught:
        attrgetter("cursor")(thing)
    assert not is_lost_connection(caught.value)
