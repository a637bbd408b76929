"""A database with a pool of one connection, which a test can take away for a while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.db.database import Sessions, full_url, sessions_on


class SingleConnection:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.sessions: Sessions = sessions_on(engine)

    async def starve(self, seconds: float) -> None:
        """Hold the only connection for so many seconds."""
        while True:
            with suppress(NoConnectionError):  # in use at this moment
                async with self._engine.connect():
                    await asyncio.sleep(seconds)
                    return


@asynccontextmanager
async def single_connection(database_url: str) -> AsyncIterator[SingleConnection]:
    """Waiting for the connection times out soon."""
    engine = create_async_engine(full_url(database_url), pool_size=1, max_overflow=0, pool_timeout=0.1)
    try:
        yield SingleConnection(engine)
    finally:
        await engine.dispose()
