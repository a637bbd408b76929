"""`sage backup`: everything that a deployment must not lose, in one file, while it runs. Blocks."""

import asyncio
import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from uuid import UUID

from app.adapters.files import CONFIG, WEIGHTS, content_hash
from app.adapters.store import AdapterStore
from app.datasets.dataset_store import DatasetStore
from app.db.table_copy import Snapshot, read_snapshot
from app.errors import AdapterError, ConflictError, InvalidError, StorageError
from app.machine.backup_archive import ArchiveWriter, BackupManifest, pack_rows, verify_archive
from app.records import BASE, hosted_id
from app.scratch import scratch_directory
from app.security.encryption import KEY_FILE
from app.settings import Settings


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
