"""A connection to the database that is lost before a statement."""

from sqlalchemy import Connection, event

from app.db.database import Sessions


def lose_connection(sessions: Sessions, beginning: str) -> list[str]:
    """Close the connection before the next statement that begins so, and then list the statement."""
    lost: list[str] = []

    def close(connection: Connection, _: object, statement: str, *__: object) -> None:
        if statement.startswith(beginning) and not lost:
            lost.append(statement)
            driver = connection.connection.dbapi_connection
            assert driver is not None
            driver.close()

    event.listen(sessions.kw["bind"].sync_engine, "before_cursor_execute", close)
    return lost
