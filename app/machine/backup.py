"""`sage backup` and `sage restore`: everything that a deployment must not lose, in one file. Both block.

The file is a tar archive that ends with a manifest, which has the hash of each other member:
tables/NAME/NUMBER.gz      rows as COPY writes them, in the order in which they can be restored
secret.key                 the keys, unless they come from the environment
adapters/HASH/FILE, datasets/ID.jsonl
manifest.json, manifest.sha256
"""

import asyncio
import gzip
import hashlib
import io
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Self
from uuid import UUID

import msgspec

from app.base.encryption import KEY_FILE, keys_in, write_key_file
from app.base.errors import AdapterError, ConflictError, InvalidError, StorageError, first_line
from app.base.files import scratch_directory
from app.base.settings import Settings
from app.base.values import BASE, hosted_id
from app.db.migrate import EmptySchema, Snapshot, Table, check_empty, check_revision, empty_schema, read_snapshot
from app.engine.adapter_files import CONFIG, WEIGHTS, content_hash
from app.releases.adapter_store import AdapterStore
from app.runs.datasets import DatasetStore

MANIFEST, MANIFEST_HASH = "manifest.json", "manifest.sha256"
_FORMAT = 1
_BLOCK = 1 << 20
_LEVEL = 1  # of compression: higher ones take several times as long for a few percent
_MOST_RATIO = 250  # of rows to what they are compressed to; this level reaches 230
_MAX_MANIFEST = 256 << 20
_NAMES = re.compile(
    r"tables/[a-z0-9_]{1,63}/\d{8}\.gz|secret\.key|adapters/[0-9a-f]{32}/[A-Za-z0-9_]+\.(json|safetensors)"
    r"|datasets/[0-9a-f-]{36}\.jsonl"
)

_KEPT = ("adapters", "datasets", KEY_FILE)  # of a data directory, besides the embedded database


class Member(msgspec.Struct, frozen=True):
    """What a member of the archive must contain."""

    sha256: str
    bytes: int


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains, and what made it."""

    format: int = _FORMAT
    created_at: datetime
    version: str  # of this software
    revision: str  # of the schema
    postgres: int  # of the server, such as 160004
    model: str  # SAGE_MODEL
    key: str  # "file", "environment" (then it is not in the backup) or "none"
    tables: list[Table]
    rows: dict[str, int]  # by table
    missing: list[str] = []  # adapters and datasets that the database names and nobody has
    members: dict[str, Member] = {}


class ArchiveWriter:
    """Adds members, and hashes what it adds."""

    def __init__(self, file: IO[bytes]) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.members: dict[str, Member] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._tar.close()

    def add(self, name: str, content: bytes) -> None:
        self._add(name, io.BytesIO(content), len(content))

    def add_file(self, name: str, path: Path) -> None:
        """Raises FileNotFoundError."""
        with path.open("rb") as file:
            self._add(name, file, path.stat().st_size)

    def finish(self, manifest: BackupManifest) -> None:
        content = msgspec.json.encode(msgspec.structs.replace(manifest, members=self.members))
        self._tar.addfile(_info(MANIFEST, len(content)), io.BytesIO(content))
        digest = hashlib.sha256(content).hexdigest().encode()
        self._tar.addfile(_info(MANIFEST_HASH, len(digest)), io.BytesIO(digest))

    def _add(self, name: str, content: IO[bytes], size: int) -> None:
        hashing = _Hashing(content)
        self._tar.addfile(_info(name, size), hashing)
        self.members[name] = Member(hashing.digest.hexdigest(), size)


def pack_rows(rows: bytes) -> bytes:
    packed = gzip.compress(rows, _LEVEL, mtime=0)
    return packed if len(rows) <= len(packed) * _MOST_RATIO else gzip.compress(rows, 0, mtime=0)


def unpack_rows(content: IO[bytes]) -> Iterator[bytes]:
    """What `pack_rows` packed, in pieces. Raises InvalidError for what it would not have: a small file could
    otherwise fill the database's disk.
    """
    stream, read, unpacked = zlib.decompressobj(16 + zlib.MAX_WBITS), 0, 0
    try:
        while part := content.read(_BLOCK):
            read += len(part)
            while part:
                piece = stream.decompress(part, _BLOCK)
                part = stream.unconsumed_tail
                unpacked += len(piece)
                if unpacked > read * _MOST_RATIO:
                    raise InvalidError("rows of the backup unpack to too much: it was not made by this server")
                yield piece
                if stream.eof and (part or stream.unused_data):
                    raise InvalidError("the backup has more than rows where rows belong: use another backup")
    except zlib.error as error:
        raise InvalidError(f"rows of the backup are damaged ({error}): use another backup") from error
    if not stream.eof:
        raise InvalidError("rows of the backup are cut off: use another backup")


def verify_archive(path: Path) -> BackupManifest:
    """Read the whole file and compare every hash. Raises InvalidError that names what is damaged or missing."""
    try:
        found, written, digest = _hash_members(path)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidError(f"{path} is damaged or no backup ({first_line(error)}). Use another backup") from error
    if not written or digest != hashlib.sha256(written).hexdigest().encode():
        raise InvalidError(f"{path} is incomplete or damaged: its manifest is not whole. Use another backup")
    manifest = _read_manifest(path, written)
    for name in sorted(found.keys() | manifest.members.keys()):
        if found.get(name) != manifest.members.get(name):
            raise InvalidError(f"{path} is damaged: {name} is not what was written. Use another backup")
    return manifest


def _hash_members(path: Path) -> tuple[dict[str, Member], bytes, bytes]:
    """The members before the manifest, the manifest, and its hash."""
    found: dict[str, Member] = {}
    last = {MANIFEST: b"", MANIFEST_HASH: b""}
    for name, content in read_members(path):
        if name in last:
            last[name] = content.read(_MAX_MANIFEST)
            continue
        if last[MANIFEST] or name in found or not _NAMES.fullmatch(name):
            raise InvalidError(f"{path} is no backup of this server: {name!r} does not belong there")
        hashing, size = _Hashing(content), 0
        while block := hashing.read(_BLOCK):
            size += len(block)
        found[name] = Member(hashing.digest.hexdigest(), size)
    return found, last[MANIFEST], last[MANIFEST_HASH]


def read_members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Each member with its content, to read before the next one. Raises StorageError, InvalidError, TarError."""
    try:
        with tarfile.open(path, "r|") as tar:
            for info in tar:
                content = tar.extractfile(info) if info.isfile() and not info.issparse() else None
                if content is None:
                    raise InvalidError(f"{path} is no backup of this server: {info.name!r} is no plain file")
                yield info.name, content
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_manifest(path: Path, content: bytes) -> BackupManifest:
    try:
        manifest = msgspec.json.decode(content, type=BackupManifest)
    except msgspec.DecodeError as error:
        raise InvalidError(f"{path} has a manifest that cannot be read ({error}): use another backup") from error
    if manifest.format != _FORMAT:
        raise InvalidError(f"{path} has format {manifest.format}: install the newer version that made it")
    return manifest


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


class _Hashing:
    """Hashes what is read through it."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content, self.digest = content, hashlib.sha256()

    def read(self, size: int = -1) -> Any:
        block = self._content.read(size)
        self.digest.update(block)
        return block


def back_up(url: str, settings: Settings, path: Path) -> BackupManifest:
    """Write the database as of one moment, adapters, datasets and keys to a new file, and read it again.

    Raises ConflictError if the file exists, DatabaseError, and StorageError if it cannot be written. A file of
    that name is then not left.
    """
    if path.exists():
        raise ConflictError(f"{path} exists: choose another name")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            with ArchiveWriter(file) as archive, read_snapshot(url) as snapshot:
                _write(archive, snapshot, settings, path.parent)
            file.flush()
            os.fsync(file.fileno())
        manifest = verify_archive(partial)
        os.link(partial, path)  # fails if another backup of this name came first
    except FileExistsError as error:
        raise ConflictError(f"{path} exists: choose another name") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def _write(archive: ArchiveWriter, snapshot: Snapshot, settings: Settings, directory: Path) -> None:
    rows = {table.name: 0 for table in snapshot.tables}
    for table in snapshot.tables:
        for number, chunk in enumerate(snapshot.rows(table)):
            rows[table.name] += chunk.count(b"\n")
            archive.add(f"tables/{table.name}/{number:08}.gz", pack_rows(chunk))
    key = _add_key(archive, settings)  # after the snapshot: a rotation writes a key before it uses it
    missing = _add_adapters(archive, snapshot, settings) + _add_datasets(archive, snapshot, settings, directory)
    archive.finish(
        BackupManifest(
            created_at=datetime.now(UTC),
            version=version("sage-server"),
            revision=snapshot.revision,
            postgres=snapshot.server,
            model=settings.local_model,
            key=key,
            tables=list(snapshot.tables),
            rows=rows,
            missing=missing,
        )
    )


def _add_key(archive: ArchiveWriter, settings: Settings) -> str:
    """Where the keys are from."""
    if settings.secret_key:
        return "environment"
    try:
        archive.add(KEY_FILE, (settings.data_dir / KEY_FILE).read_bytes())
    except FileNotFoundError:
        return "none"
    return "file"


def _add_adapters(archive: ArchiveWriter, snapshot: Snapshot, settings: Settings) -> list[str]:
    """Those that no directory and no store has whole."""
    store, missing = AdapterStore(settings.adapters_dir, settings.adapter_store), []
    names = {*snapshot.column("adapters", "hash"), *snapshot.column("releases", "model")} - {BASE}
    for name in sorted(name for name in map(str, names) if hosted_id(name) is None):
        try:
            path = asyncio.run(store.fetch(name))
            if content_hash(path) != name:
                raise AdapterError(f"{path} is damaged")
        except AdapterError:
            missing.append(f"adapters/{name}")
            continue
        for file in (CONFIG, WEIGHTS):
            archive.add_file(f"adapters/{name}/{file}", path / file)
    return missing


def _add_datasets(archive: ArchiveWriter, snapshot: Snapshot, settings: Settings, directory: Path) -> list[str]:
    """Those that are gone, or damaged. Each is copied beside the backup first: it may be deleted at any time."""
    store, missing = DatasetStore(settings.datasets_dir, settings.adapter_store), []
    digests = zip(snapshot.column("datasets", "id"), snapshot.column("datasets", "digest"), strict=True)
    for dataset_id, digest in sorted(digests, key=str):
        name = f"datasets/{dataset_id}.jsonl"
        with scratch_directory(directory) as own:
            copy = own / "dataset"
            try:
                asyncio.run(store.fetch(UUID(str(dataset_id)), str(digest), copy))
            except InvalidError:
                missing.append(name)
                continue
            archive.add_file(name, copy)
    return missing


def read_backup(path: Path, settings: Settings, *, replace: bool) -> BackupManifest:
    """Check the whole file, and that the data directory is empty unless `replace`. Nothing is changed.

    Raises InvalidError for a damaged file, DatabaseError for one of a newer version, ConflictError.
    """
    manifest = verify_archive(path)
    check_revision(manifest.revision)
    if not replace and (full := [name for name in _KEPT if _is_full(settings.data_dir / name)]):
        raise ConflictError(f"{settings.data_dir / full[0]} exists: choose another SAGE_DATA_DIR, or --replace it")
    return manifest


def restore(url: str, path: Path, manifest: BackupManifest, settings: Settings, *, replace: bool) -> None:
    """Restore what `read_backup` has checked. The database changes in one transaction, committed when all files
    are in place.

    Adapters and datasets that are there stay; keys that are there follow those of the backup. Raises ConflictError
    if the database is in use or not empty, unless `replace`, DatabaseError and StorageError.
    """
    check_empty(url, replace=replace)
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        with (
            scratch_directory(settings.data_dir, ".restore-") as staged,
            empty_schema(url, manifest.revision) as schema,
        ):
            rows = _read(path, manifest, schema, staged)
            if rows != manifest.rows:
                raise InvalidError(f"{path} has {rows} rows, not {manifest.rows}: use another backup")
            _put_files(staged, settings)
    except OSError as error:
        raise StorageError(f"{settings.data_dir} cannot be written: {error.strerror or error}") from error


def _read(path: Path, manifest: BackupManifest, schema: EmptySchema, staged: Path) -> dict[str, int]:
    """The rows written, by table. Files go to `staged`."""
    tables: Mapping[str, Table] = {table.name: table for table in manifest.tables}
    rows = dict.fromkeys(tables, 0)
    for name, content in read_members(path):
        if name.startswith("tables/"):
            table = tables[name.split("/")[1]]
            rows[table.name] += schema.write(table, unpack_rows(content))
        elif name not in (MANIFEST, MANIFEST_HASH):
            _stage(staged / name, content)
    return rows


def _stage(path: Path, content: IO[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        shutil.copyfileobj(content, file)


def _put_files(staged: Path, settings: Settings) -> None:
    adapters = AdapterStore(settings.adapters_dir, settings.adapter_store)
    for directory in sorted(staged.glob("adapters/*")):
        if asyncio.run(adapters.import_adapter(directory)) != directory.name:
            raise InvalidError(f"adapter {directory.name} is damaged: use another backup")
    datasets = DatasetStore(settings.datasets_dir, settings.adapter_store)
    datasets.local.mkdir(parents=True, exist_ok=True)
    for file in sorted(staged.glob("datasets/*")):
        asyncio.run(datasets.put(UUID(file.stem), file))
    key = staged / KEY_FILE
    if key.exists() and not settings.secret_key:
        here = settings.data_dir / KEY_FILE
        former = keys_in(here.read_text()) if here.exists() else []
        write_key_file(here, list(dict.fromkeys([*keys_in(key.read_text()), *former])), replace=True)


def _is_full(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()
