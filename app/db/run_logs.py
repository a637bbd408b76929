"""The end of each training run's log, which its worker copies here: workers may be on other hosts."""

from uuid import UUID

from sqlalchemy import literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables

_log, _run = tables.RunLog, tables.TrainingRun


async def store(session: AsyncSession, run_id: UUID, end: str) -> None:
    """Replace what is stored. Nothing is, once the run has been deleted."""
    row = select(_run.id, literal(end)).where(_run.id == run_id)
    await session.execute(
        insert(_log)
        .from_select(["run_id", "end"], row)
        .on_conflict_do_update(index_elements=["run_id"], set_={"end": end})
    )


async def read(session: AsyncSession, run_id: UUID) -> str | None:
    """At most its last 64 KiB, from the beginning of a line. None before its worker has copied it."""
    return await session.scalar(select(_log.end).where(_log.run_id == run_id))
