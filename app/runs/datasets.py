"""Datasets that runs of kind `sft` learn from: their rows, their files, and the places that data may be read
from.

One that is uploaded is hashed and validated as it arrives. A place must be spelled plainly and lie under a
prefix that the operator allowed: what is compared with the prefixes is then what will be read.
"""

import asyncio
import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Final
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError, LimitError, NotFoundError, SettingError, StorageError, first_line
from app.base.files import remove_old, sha256_of
from app.base.settings import Settings
from app.db import tables
from app.db.queries import Page, read_page
from app.releases.adapter_store import open_remote, remote_errors
from app.runs.chat_lines import from_line

log = structlog.get_logger(__name__)

_dataset = tables.Dataset
SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss")
MAX_BYTES: Final = 10**9  # of one dataset
_SEGMENT = re.compile(r"[A-Za-z0-9._+=~, -]+")
_UPLOADS = 2  # of one project at once
_UPLOAD_SECONDS = 10.0  # that one may take
_BATCH = 1 << 20  # bytes that are handed to a thread at once
_MAX_LINE = 2 << 20  # bytes of one conversation
_PARTIAL = ".partial-"  # prefix of a file that is being written


async def add(session: AsyncSession, new: tables.Dataset) -> tables.Dataset:
    """Store the row. If the project has a dataset with the same content, return that instead."""
    values = {
        name: getattr(new, name) for name in ("id", "project_id", "name", "digest", "bytes", "conversations")
    }
    await session.execute(insert(_dataset).values(**values).on_conflict_do_nothing())
    same = select(_dataset).where(_dataset.project_id == new.project_id, _dataset.digest == new.digest)
    return (await session.scalars(same)).one()


async def get(session: AsyncSession, dataset_id: UUID, project_id: UUID | None = None) -> tables.Dataset:
    """Raises NotFoundError also for a dataset of another project than the one given."""
    found = await session.get(_dataset, dataset_id)
    if found is None or project_id not in (None, found.project_id):
        raise NotFoundError(f"no dataset has the id {dataset_id}; GET /v1/datasets lists them")
    return found


async def page(
    session: AsyncSession, project_id: UUID | None, *, cursor: str | None, limit: int
) -> Page[tables.Dataset]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_dataset)
    if project_id is not None:
        query = query.where(_dataset.project_id == project_id)
    return await read_page(session, query, _dataset, cursor, limit)


async def stored_bytes(session: AsyncSession, project_id: UUID) -> int:
    """The sum over the project's datasets. Other transactions that ask wait until this one ends."""
    await session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"datasets {project_id}", 0))))
    query = select(func.coalesce(func.sum(_dataset.bytes), 0)).where(_dataset.project_id == project_id)
    return int((await session.scalars(query)).one())


async def ids_of(session: AsyncSession, project_id: UUID) -> Sequence[UUID]:
    return (await session.scalars(select(_dataset.id).where(_dataset.project_id == project_id))).all()


async def delete(session: AsyncSession, dataset_id: UUID) -> None:
    await session.execute(sql_delete(_dataset).where(_dataset.id == dataset_id))


class DataRules(msgspec.Struct, frozen=True):
    """The operator's rules for training data."""

    prefixes: tuple[str, ...] = ()
    max_bytes: int = MAX_BYTES

    @classmethod
    def of(cls, settings: Settings) -> "DataRules":
        """Raises SettingError for an invalid prefix."""
        try:
            prefixes = prefixes_in(settings.data_prefixes)
        except ValueError as error:
            raise SettingError(f"SAGE_DATA_PREFIXES: {error}") from error
        return cls(tuple(prefixes))


def dataset_id_of(data: str) -> UUID | None:
    """The id, if the value is one."""
    try:
        return UUID(data)
    except ValueError:
        return None


def prefixes_in(text: str) -> list[str]:
    """The prefixes, each with a slash at its end. Raises ValueError for one that cannot be a prefix.

    >>> prefixes_in("s3://bucket/chats, /srv/data/")
    ['s3://bucket/chats/', '/srv/data/']
    """
    prefixes = [each.strip().rstrip("/") for each in text.split(",") if each.strip()]
    for each in prefixes:
        if not _is_plain(each):
            schemes = ", ".join(f"{scheme}://" for scheme in SCHEMES)
            raise ValueError(f"{each!r} is neither an absolute directory nor a plain URL with {schemes}")
    return [f"{each}/" for each in prefixes]


def check_location(data: str, prefixes: Sequence[str], *, directories: bool) -> None:
    """Raises InvalidError unless the place is under a prefix; with a path only if `directories` are allowed."""
    allowed = [each for each in prefixes if directories or not each.startswith("/")]
    if not _is_plain(data) or not any(data.startswith(each) for each in allowed):
        raise InvalidError(
            f"data={data!r}: upload the file with POST /v1/datasets and give its id, or a URL under a prefix that "
            "the operator allows with SAGE_DATA_PREFIXES"
        )


def resolve_path(data: str, prefixes: Sequence[str]) -> Path:
    """The file that a path leads to. Raises InvalidError if that is none, or elsewhere by a symbolic link."""
    path = Path(data).resolve()
    roots = [Path(each).resolve() for each in prefixes if each.startswith("/")]
    if not path.is_file() or not any(path.is_relative_to(root) for root in roots):
        raise InvalidError(f"data={data!r} is no file under a directory of SAGE_DATA_PREFIXES")
    return path


def _is_plain(place: str) -> bool:
    """
    >>> [_is_plain(each) for each in ("s3://bucket/a.jsonl", "/srv/data", "s3://bucket/../a", "file:///srv")]
    [True, True, False, False]
    """
    scheme, is_url, rest = place.partition("://")
    if not is_url:
        rest = place.removeprefix("/")
        if rest == place:
            return False
    elif scheme not in SCHEMES:
        return False
    parts = rest.split("/")
    return all(_SEGMENT.fullmatch(part) and part not in (".", "..") for part in parts)


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

    async def delete_all(self, dataset_ids: Sequence[UUID]) -> None:
        """Of a project that is deleted. A file that cannot be deleted is logged and stays."""
        for dataset_id in dataset_ids:
            try:
                await self.delete(dataset_id)
            except StorageError as error:
                log.warning("the file of a deleted dataset stays", dataset=str(dataset_id), cause=str(error))

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
        if sha256_of(target) != digest:
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


def _name(dataset_id: UUID) -> str:
    return f"{dataset_id}.jsonl"


class IncomingDataset:
    """`path` is complete, and the other fields are true, once `receive` has returned."""

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        self.path = Path(file.name)
        self.bytes = 0
        self.conversations = 0
        self._file = file
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._lines = 0
        self._rest = bytearray()  # of a line whose end has not arrived

    @property
    def digest(self) -> str:
        """The sha256 of the content, in hex."""
        return self._digest.hexdigest()

    async def receive(self, body: AsyncIterator[bytes]) -> None:
        """Raises InvalidError that names the line that does not fit, StorageError if it cannot be written."""
        batch = bytearray()
        async for chunk in body:
            batch += chunk
            if len(batch) >= _BATCH:
                await asyncio.to_thread(self._add, bytes(batch))
                batch.clear()
        await asyncio.to_thread(self._end, bytes(batch))

    def _add(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.bytes > self._max_bytes:
            raise InvalidError(f"the file has more than {self._max_bytes:,} bytes: split it")
        self._digest.update(data)
        with _storing():
            self._file.write(data)
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            self._validate(bytes(self._rest) + whole + newline)
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > _MAX_LINE:
            raise self._too_long(self._lines + 1)

    def _end(self, data: bytes) -> None:
        self._add(data)
        self._validate(bytes(self._rest))
        if not self.conversations:
            raise InvalidError("the file holds no conversation: it needs one JSON object per line")
        with _storing():
            self._file.flush()

    def _validate(self, lines: bytes) -> None:
        """The same lines, numbered in the same way, as those that a run reads."""
        for line in (lines if self._lines else lines.removeprefix(b"\xef\xbb\xbf")).splitlines():
            self._lines += 1
            if len(line) > _MAX_LINE:
                raise self._too_long(self._lines)
            if line.strip():
                try:
                    from_line(line)
                except InvalidError as error:
                    raise InvalidError(f"line {self._lines}: {error}") from error
                self.conversations += 1

    def _too_long(self, line: int) -> InvalidError:
        return InvalidError(f"line {line} has more than {_MAX_LINE:,} bytes: leave the conversation out")


@asynccontextmanager
async def incoming(directory: Path, max_bytes: int) -> AsyncIterator[IncomingDataset]:
    """The file is deleted on leaving, unless it was moved. Raises StorageError."""
    file = await asyncio.to_thread(_create_in, directory)
    dataset = IncomingDataset(file, max_bytes)
    try:
        yield dataset
    finally:
        file.close()
        dataset.path.unlink(missing_ok=True)


def _create_in(directory: Path) -> IO[bytes]:
    """Also delete what uploads left behind whose process was killed."""
    with _storing():
        directory.mkdir(parents=True, exist_ok=True)
        remove_old(directory, f"{_PARTIAL}*")
        return NamedTemporaryFile(prefix=_PARTIAL, dir=directory, delete=False)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the dataset cannot be written: {error.strerror or error}") from error
