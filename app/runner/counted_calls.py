"""Counts calls to live APIs that no task's outcome has: those of checks and shadows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from app.apis.calls.gateway import Gateway
from app.db.database import Sessions
from app.projects import usage


@asynccontextmanager
async def counted_calls(sessions: Sessions, project_id: UUID, owner: str, gateway: Gateway) -> AsyncIterator[None]:
    """At the end, however it comes about, the gateway's calls count for the project's day."""
    try:
        yield
    finally:
        if gateway.made:
            async with sessions.begin() as session:
                await usage.add(session, project_id, usage.writer_of(owner), calls=gateway.made)
