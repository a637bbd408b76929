"""A database of which this process has a single connection, so that whoever holds it leaves none to the rest."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from sqlalchemy.exc import TimeoutError as NoConnectionError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from app.db.database import Sessions, full_url


class Narrow:
    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.sessions: Sessions = async_sessionmaker(engine, expire_on_commit=False)

    async def starve(self, seconds: float) -> None:
        """Meanwhile nobody else gets the connection."""
        while True:
            with suppress(NoConnectionError):  # somebody has it at this moment
                async with self._engine.connect():
                    await asyncio.sleep(seconds)
                    return


@asynccontextmanager
async def narrow(database_url: str) -> AsyncIterator[Narrow]:
    """Who waits for the connection gives up soon."""
    engine = create_async_engine(full_url(database_url), pool_size=1, max_overflow=0, pool_timeout=0.1)
    try:
        yield Narrow(engine)
    finally:
        await engine.dispose()
