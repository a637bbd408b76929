"""Fetches the data that a supervised run names: an uploaded dataset, or a file under an allowed prefix."""

import asyncio
import os
from pathlib import Path
from uuid import UUID

from app.adapters.remote_store import open_remote, remote_errors
from app.datasets.data_location import DataRules, check_location, dataset_id_of, resolve_path
from app.datasets.dataset_store import DatasetStore
from app.db import datasets
from app.db.database import Sessions
from app.errors import InvalidError, NotFoundError, SettingError, StorageError, first_line
from trainer.run_job import Job

_FILE = "sft.data"


async def fetch_data(job: Job, sessions: Sessions) -> Path:
    """The file, on this machine. The rules of this machine apply, whoever queued the run.

    Raises InvalidError for data that may not be read, is missing or is damaged, StorageError if its store does not
    answer.
    """
    if dataset_id := dataset_id_of(job.settings.data):
        return await _fetch_dataset(job, sessions, dataset_id)
    data, rules = job.settings.data, DataRules.of(job.deployment)
    check_location(data, rules.prefixes, directories=True)
    if data.startswith("/"):
        return resolve_path(data, rules.prefixes)
    target = _target(job)
    await asyncio.to_thread(_download, data, target, rules.max_bytes)
    return target


async def _fetch_dataset(job: Job, sessions: Sessions, dataset_id: UUID) -> Path:
    try:
        async with sessions() as session:
            row = await datasets.get(session, dataset_id, job.project_id)
    except NotFoundError as error:
        raise InvalidError(f"dataset {dataset_id} was deleted: upload it again, and start another run") from error
    store = DatasetStore(job.deployment.datasets_dir, job.deployment.adapter_store)
    await store.fetch(dataset_id, row.digest, _target(job))
    return _target(job)


def _download(url: str, target: Path, max_bytes: int) -> None:
    try:
        remote, path = open_remote(url)
    except SettingError as error:
        raise InvalidError(f"data={url!r}: {first_line(error.__cause__ or error)}") from error
    try:
        found = remote.info(path)
        if found["type"] != "file":
            raise InvalidError(f"data={url!r} is no file")
        if found["size"] is None or found["size"] > max_bytes:
            raise InvalidError(f"data={url!r} has more than {max_bytes:,} bytes: split it")
        remote.get_file(path, os.fspath(target))
    except FileNotFoundError as error:
        raise InvalidError(f"data={url!r} does not exist") from error
    except remote_errors() as error:
        raise StorageError(f"data={url!r} cannot be read ({first_line(error)})") from error


def _target(job: Job) -> Path:
    job.directory.mkdir(parents=True, exist_ok=True)
    return job.directory / _FILE
