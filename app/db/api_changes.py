"""API documents that are fetched again: when, with which result, and what changed."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables

_api, _change = tables.Api, tables.ApiChange
_PAGE = 100


async def claim_due(session: AsyncSession, hours: float) -> UUID | None:
    """An API whose document was last fetched so long ago; it is not due again for as long. Or None."""
    checked = func.coalesce(_api.checked_at, _api.created_at)
    due = (
        select(_api.id)
        .where(_api.source.like("http%"), checked < func.clock_timestamp() - timedelta(hours=hours))
        .order_by(checked)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    claimed = update(_api).where(_api.id == due.scalar_subquery()).values(checked_at=func.clock_timestamp())
    return await session.scalar(claimed.returning(_api.id))


async def checked(session: AsyncSession, api_id: UUID, failure: str | None = None) -> None:
    """Record that the document was fetched, or why it could not be."""
    values = {"checked_at": func.clock_timestamp(), "check_failure": failure}
    await session.execute(update(_api).where(_api.id == api_id).values(values))


async def of_api(session: AsyncSession, api_id: UUID) -> Sequence[tables.ApiChange]:
    """The latest ones, newest first."""
    query = select(_change).where(_change.api_id == api_id).order_by(_change.created_at.desc(), _change.id)
    return (await session.scalars(query.limit(_PAGE))).all()


async def waiting(session: AsyncSession, api_id: UUID, digest: str) -> tables.ApiChange | None:
    """The change to this document, if it is recorded and was not applied."""
    query = select(_change).where(_change.api_id == api_id, _change.digest == digest, ~_change.applied)
    return await session.scalar(query.limit(1))
