"""`sage restore`: a deployment as a backup has it. Blocks."""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO
from uuid import UUID

from app.adapters.store import AdapterStore
from app.datasets.dataset_store import DatasetStore
from app.db.table_copy import EmptySchema, Table, check_empty, check_revision, empty_schema
from app.errors import ConflictError, InvalidError, StorageError
from app.machine.backup_archive import (
    MANIFEST,
    MANIFEST_HASH,
    BackupManifest,
    read_members,
    unpack_rows,
    verify_archive,
)
from app.scratch import scratch_directory
from app.security.encryption import KEY_FILE, keys_in, write_key_file
from app.settings import Settings

_KEPT = ("adapters", "datasets", KEY_FILE)  # of a data directory, besides the embedded database


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
