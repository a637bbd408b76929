"""The adapter that a run continues: that of the active release, or none."""

from pathlib import Path

from app.adapters.store import AdapterStore
from app.db import models, releases
from app.db.database import Sessions
from app.errors import InvalidError
from app.records import BASE
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
        model = (await releases.active(session, job.project_id)).model
        adapter = await session.get(models.Adapter, model)
    if adapter is not None and adapter.base != job.deployment.model:
        raise InvalidError(
            f"the active release has an adapter for the base model {adapter.base}, but {job.deployment.model} is "
            f'served: set start="base" to start over, or SAGE_MODEL={adapter.base}'
        )
    return await fetch_adapter(job, model)


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
