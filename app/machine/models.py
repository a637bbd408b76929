"""Model directories and GGUF files of the Hugging Face hub, by id."""

import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from glob import escape
from pathlib import Path, PurePosixPath

import httpx
import msgspec
from huggingface_hub import constants, get_token, hf_hub_url
from huggingface_hub.errors import HFValidationError

from app.errors import ModelDownloadError, ModelError, ModelHashError, first_line
from app.model_catalog import HASH_DIGITS, directory_stem
from app.model_store.convert import check_disk_space
from app.model_store.downloads import download, get, open_client, repeated, without_password
from app.model_store.model_checks import check_directory, check_weights
from app.model_store.package_index import configured_indexes
from app.publish import publish

_FILES = ["*.json", "*.safetensors", "*.jinja", "README.md", "LICENSE*"]
_WEIGHTS = "model*.safetensors"
_OTHER_WEIGHTS = ["*/*.safetensors", "consolidated*.safetensors"]
"""The same weights in the formats of other libraries: in folders, and as Mistral's reads them."""
_COMMIT = "X-Repo-Commit"
_REFUSED = (401, 403)
_REDIRECTS = 5  # of a repository that was renamed


class HubFile(msgspec.Struct, frozen=True):
    """A file of one commit."""

    url: str
    sha256: str  # empty: the hub keeps it without one
    size: int  # 0: unknown
    version: str  # names its content: the hash, or else the commit


def open_hub() -> AbstractContextManager[httpx.Client]:
    """A client for the hub alone, with the token of `HF_TOKEN` or of `hf auth login`."""
    return open_client(configured_indexes().certificates, get_token() or "")


def find_file(client: httpx.Client, name: str) -> HubFile:
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


def pull_repository(name: str, models: Path, downloads: Path) -> Path:
    """Download the newest commit of a repository, or the rest of it, and install it whole or not at all.

    The weights come last, when the rest is known to be of a model that can be served.
    """
    found = _info(name)
    target = models / f"{directory_stem(name)}-{found.sha[:HASH_DIGITS]}"
    if target.is_dir():
        return target
    wanted = _wanted(found)
    partial = version_folder(downloads, name, found.sha)
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # of huggingface_hub, which an earlier version asked
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
