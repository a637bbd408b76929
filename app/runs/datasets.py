"""The files of uploaded datasets: in the store that all hosts share, or without one in the data directory."""

import asyncio
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from app.adapters.remote_store import open_remote, remote_errors
from app.base.errors import InvalidError, LimitError, StorageError, first_line

_CHUNK = 1 << 20
_UPLOADS = 2  # of one project at once
_UPLOAD_SECONDS = 10.0  # that one may take


class DatasetStore:
    """A file never changes. `local` is this machine's directory, `url` that of `SAGE_ADAPTER_STORE`."""

    def __init__(self, local: Path, url: str = "") -> None:
        """Raises SettingError for a URL that cannot be a store. Does not contact the store yet."""
        self.local = local.absolute()
        self._url = url.rstrip("/")
        self._errors: tuple[type[Exception], ...] = (OSError,)
        self._remote: Any = None
        self._root = ""
        self._uploads: Counter[UUID] = Counter()
        if url:
            self._remote, self._root = open_remote(url)
            self._errors = remote_errors()

    @contextmanager
    def uploading(self, project_id: UUID) -> Iterator[None]:
        """Raises LimitError while the project has too many uploads in this process."""
        if self._uploads[project_id] >= _UPLOADS:
            message = f"the project has {_UPLOADS} uploads in progress: wait until one has ended"
            raise LimitError(message, name="uploads", value=_UPLOADS, setting="", retry_after=_UPLOAD_SECONDS)
        self._uploads[project_id] += 1
        try:
            yield
        finally:
            self._uploads[project_id] -= 1

    async def put(self, dataset_id: UUID, path: Path) -> None:
        """Take over the file. Raises StorageError."""
        await asyncio.to_thread(self._put, dataset_id, path)

    async def fetch(self, dataset_id: UUID, digest: str, target: Path) -> None:
        """Copy the file to `target`. Raises InvalidError if it is missing or damaged, StorageError otherwise."""
        await asyncio.to_thread(self._fetch, dataset_id, digest, target)

    async def delete(self, dataset_id: UUID) -> None:
        """Safe to repeat. Raises StorageError."""
        await asyncio.to_thread(self._delete, dataset_id)

    def _put(self, dataset_id: UUID, path: Path) -> None:
        try:
            if self._remote is None:
                os.replace(path, self.local / _name(dataset_id))
            else:
                self._remote.makedirs(f"{self._root}/datasets", exist_ok=True)
                self._remote.put_file(str(path), self._path(dataset_id))
        except self._errors as error:
            raise self._error("cannot be stored", dataset_id, error) from error

    def _fetch(self, dataset_id: UUID, digest: str, target: Path) -> None:
        try:
            if self._remote is None:
                shutil.copyfile(self.local / _name(dataset_id), target)
            else:
                self._remote.get_file(self._path(dataset_id), str(target))
        except FileNotFoundError as error:
            raise InvalidError(f"the file of dataset {dataset_id} is missing: upload it again") from error
        except self._errors as error:
            raise self._error("cannot be read", dataset_id, error) from error
        if digest_of(target) != digest:
            raise InvalidError(f"the file of dataset {dataset_id} is damaged: delete it and upload it again")

    def _delete(self, dataset_id: UUID) -> None:
        try:
            if self._remote is None:
                (self.local / _name(dataset_id)).unlink(missing_ok=True)
            else:
                self._remote.rm_file(self._path(dataset_id))
        except FileNotFoundError:
            pass
        except self._errors as error:
            raise self._error("cannot be deleted", dataset_id, error) from error

    def _path(self, dataset_id: UUID) -> str:
        return f"{self._root}/datasets/{_name(dataset_id)}"

    def _error(self, what: str, dataset_id: UUID, error: Exception) -> StorageError:
        place = f"{self._url}/datasets: check SAGE_ADAPTER_STORE" if self._url else str(self.local)
        return StorageError(f"dataset {dataset_id} {what} ({first_line(error)}) in {place}")


def digest_of(path: Path) -> str:
    """The sha256 of the content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _name(dataset_id: UUID) -> str:
    return f"{dataset_id}.jsonl"
