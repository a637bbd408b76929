"""The adapter that a run continues: that of the active release, of the last one before a hosted model, or none."""

from pathlib import Path
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.store import AdapterStore
from app.db import releases, tables
from app.db.database import Sessions
from app.errors import InvalidError
from app.records import BASE, hosted_id
from trainer.atomic_write import write_atomically
from trainer.run_job import Job

_FILE = "start"  # in the run's directory: the hash of the adapter, or the base model


async def find_start(job: Job, sessions: Sessions) -> Path | None:
    """The directory of the adapter, None for the base model.

    A retry continues the adapter that was recorded, as another release may be active now. Raises InvalidError for
    an adapter of another base model.
    """
    recorded = job.directory / _FILE
    if recorded.exists():
        return await fetch_adapter(job, recorded.read_text())
    if job.settings.start == "base":
        return None
    async with sessions() as session:
        model = await _serving(session, job.project_id)
        adapter = await session.get(tables.Adapter, model)
    served = job.deployment.local_model
    if adapter is not None and adapter.base != served:
        raise InvalidError(
            f"the active release has an adapter for the base model {adapter.base}, but {served} is "
            f'served: set start="base" to start over, or SAGE_MODEL={adapter.base}'
        )
    return await fetch_adapter(job, model)


async def _serving(session: AsyncSession, project_id: UUID) -> str:
    """The weights of the active release or, while that has a hosted model, those that served last."""
    active = await releases.active(session, project_id)
    if hosted_id(active.model) is None:
        return active.model
    row = tables.Release
    served = await releases.of_project(
        session, project_id, row.activated_at.is_not(None), releases.is_local(row.model)
    )
    latest = max(served, key=lambda release: str(release.activated_at), default=None)
    return latest.model if latest else BASE


def record_start(job: Job, start: Path | None) -> None:
    """Keep the start for retries."""
    write_atomically(name_of(start).encode(), job.directory / _FILE)


def name_of(start: Path | None) -> str:
    """The hash of the adapter, or BASE."""
    return start.name if start else BASE


async def fetch_adapter(job: Job, model: str) -> Path | None:
    """The local directory of an adapter, copied from the store if another host trained it; None for the base."""
    return None if model == BASE else await adapter_store(job).fetch(model)


def adapter_store(job: Job) -> AdapterStore:
    return AdapterStore(job.deployment.adapters_dir, job.deployment.adapter_store)
