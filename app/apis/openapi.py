"""An OpenAPI 3.0 or 3.1 document becomes an app: it is fetched, read, and turned into operations."""

import asyncio
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx
import msgspec

from app.apis.catalog import App
from app.apis.operations import operations
from app.apis.references import References
from app.apis.yaml_json import read_text
from app.errors import ApiDocumentError
from app.records import Json

MAX_DOCUMENT_BYTES = 20 << 20
_RESERVED = {"api_docs"}
_ADDRESS = re.compile(r"(https?|\{\w+\})://[^/]")


async def fetch_document(client: httpx.AsyncClient, source: str) -> dict[str, Json]:
    """The document at an http(s) URL, a file:// URL or a path. Raises ApiDocumentError."""
    try:
        scheme = urlsplit(source).scheme
    except ValueError as error:
        raise ApiDocumentError(f"{source} is not an address: {error}") from error
    if scheme in ("http", "https"):
        return read_document(await _download(client, source))
    path = Path(unquote(urlsplit(source).path) if scheme == "file" else source)
    try:
        return read_document(await asyncio.to_thread(path.read_text, "utf-8"))
    except OSError as error:
        raise ApiDocumentError(f"{source} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ApiDocumentError(f"{source} is not UTF-8 text") from error


def read_document(text: str) -> dict[str, Json]:
    """JSON or YAML text as a mapping. Raises ApiDocumentError that names the line."""
    document = read_text(text)
    if not isinstance(document, dict):
        raise ApiDocumentError(
            "this is not an OpenAPI document: it must be a mapping that begins with `openapi: 3.1.0`"
        )
    return document


def parse_document(
    name: str, document: Mapping[str, Json], *, source: str | None = None, server: str | None = None
) -> App:
    """The app that a document describes, under `name`. Raises ApiDocumentError that says what is wrong and where.

    `server` overrides where the document says it is served; `source` is what a relative server is relative to.
    """
    _check_name(name)
    _check_version(document)
    found = operations(name, document, References(document))
    if not found:
        raise ApiDocumentError("the document has no operations under `paths`, so there is nothing to call")
    base, variables = _server(document, source)
    if server is not None:
        base, found = server, {key: msgspec.structs.replace(each, server=None) for key, each in found.items()}
    _check_server(base)
    info = document.get("info")
    about = info if isinstance(info, Mapping) else {}
    return App(
        name=name,
        description=str(about.get("description") or about.get("title") or "").strip(),
        server=base.rstrip("/"),
        variables={key: str(each["default"]) for key, each in variables.items() if "default" in each},
        choices={key: tuple(map(str, _enum(each))) for key, each in variables.items() if "enum" in each},
        operations={
            key: each
            if each.server is None
            else msgspec.structs.replace(each, server=_absolute(each.server, base))
            for key, each in found.items()
        },
        digest=hashlib.sha256(msgspec.json.encode(document)).hexdigest(),
    )


async def _download(client: httpx.AsyncClient, source: str) -> str:
    try:
        async with client.stream("GET", source, follow_redirects=True) as response:
            if not response.is_success:
                raise ApiDocumentError(
                    f"{source} answered with status {response.status_code} instead of a document"
                )
            read = bytearray()
            async for part in response.aiter_bytes():
                read += part
                if len(read) > MAX_DOCUMENT_BYTES:
                    raise ApiDocumentError(f"{source} is larger than {MAX_DOCUMENT_BYTES >> 20} MB")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ApiDocumentError(f"{source} cannot be reached: {str(error) or type(error).__name__}") from error
    try:
        return read.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiDocumentError(f"{source} is not UTF-8 text") from error


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or not name.isidentifier():
        raise ApiDocumentError(f"{name!r} cannot name an app: use letters, digits and underscores, as in my_mail")
    if name in _RESERVED:
        raise ApiDocumentError(f"an app cannot be named {name}: that name is built in; choose another")


def _check_version(document: Mapping[str, Json]) -> None:
    if "swagger" in document:
        raise ApiDocumentError(
            "this is a Swagger 2 document; convert it to OpenAPI 3 first (for example with swagger2openapi)"
        )
    version = document.get("openapi")
    if not isinstance(version, str):
        raise ApiDocumentError("this is not an OpenAPI document: it has no `openapi` version at the top")
    if not re.match(r"3\.[01](\.|$)", version):
        raise ApiDocumentError(f"OpenAPI {version} is not supported; 3.0 and 3.1 are")
    if not isinstance(document.get("paths"), Mapping) or not document["paths"]:
        raise ApiDocumentError("the document has no operations under `paths`, so there is nothing to call")


def _server(document: Mapping[str, Json], source: str | None) -> tuple[str, Mapping[str, Json]]:
    """The first server, absolute where the source is, and its variables."""
    servers = document.get("servers") or [{"url": "/"}]
    if not isinstance(servers, list) or not isinstance(servers[0], Mapping):
        raise ApiDocumentError("servers: expected a list of objects with a url")
    url = servers[0].get("url")
    if not isinstance(url, str):
        raise ApiDocumentError("servers/0: a server needs a url")
    variables = servers[0].get("variables") or {}
    if not isinstance(variables, Mapping):
        raise ApiDocumentError("servers/0/variables: expected an object")
    return _absolute(url, source), {key: each for key, each in variables.items() if isinstance(each, Mapping)}


def _enum(variable: Mapping[str, Json]) -> list[Json]:
    enum = variable["enum"]
    if not isinstance(enum, list):
        raise ApiDocumentError("servers/0/variables: an `enum` is a list")
    return enum


def _absolute(url: str, source: str | None) -> str:
    try:
        relative = not _ADDRESS.match(url)  # urljoin would take {scheme}:// for one
        if relative and source is not None and urlsplit(source).scheme in ("http", "https"):
            return urljoin(source, url)
        urlsplit(url)
    except ValueError as error:
        raise ApiDocumentError(f"servers: {url!r} is not an address: {error}") from error
    return url


def _check_server(url: str) -> None:
    if not _ADDRESS.match(url):
        raise ApiDocumentError(
            f"the document is served from {url!r}, which is not an http(s) address; give the server's URL with it"
        )
