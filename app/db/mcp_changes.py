"""Which MCP servers are to be asked for their tools again, because they told that these have changed."""

from typing import Final
from uuid import UUID

from sqlalchemy import case, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import apis, tables
from app.db.queries import from_now

MAX_TRIES: Final = 8  # about an hour
_api = tables.Api
_SOON_SECONDS = 1.0  # several changes in a row are one
_PAUSE_SECONDS = 30.0  # before the second try; each later one waits twice as long


async def mark(session: AsyncSession, project_id: UUID, source: str) -> None:
    """The server at `source` has other tools now."""
    soon = from_now(_SOON_SECONDS)
    marked = update(_api).where(_api.project_id == project_id, _api.source == source)
    await session.execute(
        marked.values(refresh_at=func.least(func.coalesce(_api.refresh_at, soon), soon), refresh_tries=0)
    )


async def mark_connected(session: AsyncSession, api_id: UUID) -> None:
    """Somebody has consented: if the API is an MCP server, its tools can be listed now."""
    is_mcp = _api.document["mcp"].as_string().is_not(None)
    marked = update(_api).where(_api.id == api_id, is_mcp)
    await session.execute(marked.values(refresh_at=func.clock_timestamp(), refresh_tries=0))


async def claim_due(session: AsyncSession) -> tables.Api | None:
    """An API to refresh, without its document; for a time, nobody else gets it. Its `refresh_tries` count this."""
    due = (
        select(_api.id)
        .where(_api.refresh_at <= func.clock_timestamp())
        .order_by(_api.refresh_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    pause = func.make_interval(0, 0, 0, 0, 0, 0, _PAUSE_SECONDS * func.power(2, _api.refresh_tries))
    last = _api.refresh_tries + 1 >= MAX_TRIES
    claimed = update(_api).where(_api.id == due.scalar_subquery())
    claimed = claimed.values(
        refresh_at=case((last, None), else_=func.clock_timestamp() + pause), refresh_tries=_api.refresh_tries + 1
    )
    found = await session.scalar(claimed.returning(_api.id))
    if found is None:
        return None
    return await session.get(_api, found, populate_existing=True, options=[apis.WITHOUT_DOCUMENT])


async def done(session: AsyncSession, api_id: UUID, tries: int) -> None:
    """It was refreshed in the try of this number, unless it has been marked again since."""
    same = update(_api).where(_api.id == api_id, _api.refresh_tries == tries)
    await session.execute(same.values(refresh_at=None, refresh_tries=0))
