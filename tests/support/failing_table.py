"""A table of the database that cannot be read for a while."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from app.db.database import Sessions


@contextmanager
def failing_table(sessions: Sessions, table: str, error: Exception) -> Iterator[asyncio.Event]:
    """In this block, statements that read the table raise the error. The event is set once one has."""
    failed, engine = asyncio.Event(), sessions.kw["bind"].sync_engine

    def fail(*about: Any) -> None:
        if f"FROM {table} " in about[2].replace("\n", " "):
            failed.set()
            raise error

    event.listen(engine, "before_cursor_execute", fail)
    try:
        yield failed
    finally:
        event.remove(engine, "before_cursor_execute", fail)
