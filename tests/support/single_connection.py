"""A database with a pool of one connection, which a test can take away for a while."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.db.database import Sessions, full_url, sessions_on


class SingleConnection:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.sessions: Sessions = sessions_on(engine)

    @asynccontextmanager
    async def starved(self) -> AsyncIterator[None]:
        """Hold the only connection in this block."""
        connection = None
        while connection is None:
            with suppress(NoConnectionError):  # in use at this moment
                connection = await self._engine.connect()
        try:
            yield
        finally:
            await connection.close()


@asynccontextmanager
async def single_connection(database_url: str) -> AsyncIterator[SingleConnection]:
    """Waiting for the connection times out soon."""
    engine = create_async_engine(full_url(database_url), pool_size=1, max_overflow=0, pool_timeout=0.1)
    try:
        yield SingleConnection(engine)
    finally:
        await engine.dispose()
