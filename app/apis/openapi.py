"""The protocol `openapi`: OpenAPI 3.0, 3.1 and 3.2, and Swagger 2.0 documents as apps."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from urllib.parse import urljoin, urlsplit

import msgspec

from app.apis.address import with_defaults
from app.apis.catalog import App, Operation
from app.apis.encode import encode
from app.apis.operations import operations
from app.apis.protocol import OutgoingRequest
from app.apis.references import References
from app.apis.security_schemes import security, security_schemes
from app.apis.swagger2 import as_openapi
from app.apis.yaml_json import to_json_text
from app.base.errors import ApiDocumentError
from app.base.values import Json

_OTHER_SERVERS = 10
_ADDRESS = re.compile(r"(https?|\{\w+\})://[^/]")


class OpenApi:
    """Fulfils `ApiProtocol`."""

    def recognizes(self, document: Mapping[str, Json]) -> bool:
        return "openapi" in document or "swagger" in document

    def parse(self, name: str, document: Mapping[str, Json], source: str | None, server: str | None) -> App:
        return _app(name, document, source, server)

    def encode(self, operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
        return encode(operation, arguments)


OPENAPI = OpenApi()


def _app(name: str, document: Mapping[str, Json], source: str | None, server: str | None) -> App:
    digest = hashlib.sha256(to_json_text(document)).hexdigest()
    _check_version(document)
    if "swagger" in document:
        document = as_openapi(document, source)
    references = References(document)
    base, variables = _server(document, source)
    defaults = {key: str(each["default"]) for key, each in variables.items() if "default" in each}
    parsed, left_out = operations(name, document, references, defaults)
    if not parsed and left_out:
        raise ApiDocumentError(left_out[0].reason)
    if not parsed:
        raise ApiDocumentError("the document has no operations under `paths`, so there is nothing to call")
    if server is not None:
        base, parsed = server, {key: msgspec.structs.replace(each, server=None) for key, each in parsed.items()}
    _check_server(base)
    info = document.get("info")
    about = info if isinstance(info, Mapping) else {}
    return App(
        name=name,
        description=str(about.get("description") or about.get("title") or "").strip(),
        server=base.rstrip("/"),
        variables=defaults,
        other_servers=tuple(_other_servers(document, source)) if server is None else (),
        choices={key: tuple(map(str, _enum(each))) for key, each in variables.items() if "enum" in each},
        operations={
            key: each
            if each.server is None
            else msgspec.structs.replace(each, server=_absolute(each.server, base))
            for key, each in parsed.items()
        },
        left_out=tuple(left_out),
        schemes=security_schemes(document, references),
        security=security(document, references, "security"),
        source=source,
        digest=digest,
    )


def _check_version(document: Mapping[str, Json]) -> None:
    field, supported = ("swagger", r"2\.0") if "swagger" in document else ("openapi", r"3\.[012](\..*)?")
    version = document.get(field)
    if field == "swagger" and version == 2.0:  # in YAML without quotes
        version = "2.0"
    if not isinstance(version, str):
        raise ApiDocumentError("this is not an OpenAPI document: it has no `openapi` version at the top")
    if not re.fullmatch(supported, version):
        raise ApiDocumentError(f"OpenAPI {version[:50]} is not supported; 2.0 (Swagger), 3.0, 3.1 and 3.2 are")
    if not isinstance(document.get("paths"), Mapping) or not document["paths"]:
        raise ApiDocumentError("the document has no operations under `paths`, so there is nothing to call")


def _server(document: Mapping[str, Json], source: str | None) -> tuple[str, Mapping[str, Json]]:
    """The first server, absolute if the source is, and its variables."""
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


def _other_servers(document: Mapping[str, Json], source: str | None) -> Iterator[str]:
    """Those after the first that have an address. One that cannot be read is left out."""
    for entry in (document.get("servers") or [])[1 : _OTHER_SERVERS + 1]:
        try:
            base, variables = _server({"servers": [entry]}, source)
        except ApiDocumentError:
            continue
        base = with_defaults(base, variables)
        if _ADDRESS.match(base) and "{" not in base:
            yield base.rstrip("/")


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
