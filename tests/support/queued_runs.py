"""Rows of queued and of claimed training runs."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.base.run_settings import RunKind, RunSettings
from app.db import tables
from app.runs import store as runs
from tests.support.rows import LEASE, project_row

EXPIRED = -1.0  # a lease that has expired when it begins
SFT = RunSettings(kind=RunKind.SFT, steps=7)


async def queued(session: AsyncSession, project_id: UUID | None = None) -> tables.TrainingRun:
    return await runs.create(session, project_id or (await project_row(session)).id, SFT)


async def held(session: AsyncSession, lease_seconds: float = LEASE) -> tables.TrainingRun:
    run = await queued(session)
    claimed = await runs.claim(session, "me", lease_seconds, run.id)
    assert claimed is not None
    return claimed
