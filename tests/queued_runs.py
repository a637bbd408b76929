"""Rows of queued and of claimed training runs."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.db import run_queue, runs, tables
from app.run_settings import RunKind, RunSettings
from tests.rows import LEASE, project_row

EXPIRED = -1.0  # a lease that has expired when it begins
SFT = RunSettings(kind=RunKind.SFT, steps=7)


async def queued(session: AsyncSession, project_id: UUID | None = None) -> tables.TrainingRun:
    return await runs.create(session, project_id or (await project_row(session)).id, SFT)


async def held(session: AsyncSession, lease_seconds: float = LEASE) -> tables.TrainingRun:
    run = await queued(session)
    claimed = await run_queue.claim(session, "me", lease_seconds, run.id)
    assert claimed is not None
    return claimed
