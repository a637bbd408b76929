"""API documents: fetched, decoded, and parsed into apps by the protocol that recognizes them.

A protocol is a part of the entry-point group `sage.api_protocols`.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Protocol

import httpx
import msgspec

from app.apis.catalog import App, Operation
from app.apis.credentials.schemes import CERTIFICATE, Authentication
from app.apis.documents.references import read_text
from app.apis.servers import same_origin
from app.apis.values import as_declared
from app.base import plugins
from app.base.errors import ApiDocumentError, HostError
from app.base.untrusted_http import BodyError, read_body
from app.base.values import Json

MAX_DOCUMENT_BYTES = 20 << 20
_FETCH_SECONDS = 60.0  # in all: large ones are made when they are asked for
_HEADERS = {"Accept-Encoding": "gzip, deflate"}
_REDIRECTS = 20
_DENIED = (401, 403)
_RESERVED = {"api_docs"}


class OutgoingRequest(msgspec.Struct, frozen=True):
    """The HTTP request of one call, without its method and the server's URL."""

    target: str  # path and query below the server's URL, percent-encoded
    headers: dict[str, str]
    content: bytes | None
    approved: bool = False  # by a person, who saw this address: it leads to no other


class ApiProtocol(Protocol):
    """Parses the documents of one kind of API and encodes the calls of its operations."""

    def recognizes(self, document: Mapping[str, Json]) -> bool:
        """Whether the document is of this kind, in any version."""

    def parse(self, name: str, document: Mapping[str, Json], source: str | None, server: str | None) -> App:
        """The app that a document describes. Raises ApiDocumentError with the problem and its place.

        `server` overrides the server in the document; `source` is what a relative server is relative to.
        """

    def encode(self, operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
        """The request of a call. Raises HostError, a ValidationError, for a value that cannot be encoded."""


class DocumentDeniedError(ApiDocumentError):
    """The server at `url` shows the document to nobody, or not to this caller: it answered 401 or 403."""

    def __init__(self, message: str, url: str, *, unknown: bool) -> None:
        super().__init__(message)
        self.url = url
        self.unknown = unknown  # who asks: other credentials may do


async def fetch_document(client: httpx.AsyncClient, source: str) -> dict[str, Json]:
    """The document at an http(s) URL, read in this process: for servers of ours. Raises ApiDocumentError."""
    return read_document(await download(client, source))


def read_document(content: str | bytes) -> dict[str, Json]:
    """JSON or YAML text as a mapping. Raises ApiDocumentError that names the line."""
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise ApiDocumentError("the document is not UTF-8 text") from error
    document = read_text(text)
    if not isinstance(document, dict):
        raise ApiDocumentError(
            "this is not an API document: it must be a mapping, such as one that begins with `openapi: 3.1.0`"
        )
    return document


def parse_document(
    name: str, document: Mapping[str, Json], *, source: str | None = None, server: str | None = None
) -> App:
    """The app that a document describes, under `name`. Raises ApiDocumentError with the problem and its place.

    `server` overrides the server in the document; `source` is what a relative server is relative to.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or not name.isidentifier():
        raise ApiDocumentError(f"{name!r} cannot name an app: use letters, digits and underscores, as in my_mail")
    if name in _RESERVED:
        raise ApiDocumentError(f"an app cannot be named {name}: that name is built in; choose another")
    for protocol_name, protocol in protocols().items():
        if protocol.recognizes(document):
            try:
                app = protocol.parse(name, document, source, server)
            except RecursionError as error:
                raise ApiDocumentError("the document is nested too deeply") from error
            return msgspec.structs.replace(app, protocol=protocol_name)
    raise ApiDocumentError(
        f"this document is of no known kind ({', '.join(protocols())}); "
        "an OpenAPI document has its version at the top, under `openapi`"
    )


def encode(app: App, operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
    """The request of a call, in the app's protocol. Raises HostError, a ValidationError."""
    try:
        return protocols()[app.protocol].encode(operation, as_declared(operation, arguments))
    except (OverflowError, UnicodeEncodeError) as error:
        reason = "an integer of more than 64 bits" if isinstance(error, OverflowError) else "half a surrogate pair"
        raise HostError("ValidationError", f"{operation.name}() cannot send {reason}") from error


def protocols() -> Mapping[str, ApiProtocol]:
    """The registered ones by name, imported at the first call. Raises InvalidError."""
    return plugins.load_all("sage.api_protocols")


async def download(
    client: httpx.AsyncClient,
    source: str,
    seconds: float = _FETCH_SECONDS,
    authentication: Authentication = Authentication(),  # noqa: B008 - frozen
) -> bytes:
    """The text at an http(s) URL, of limited size, within limited time. Redirects are followed.

    `authentication` is sent to the origin of `source`, and nowhere else. Raises ApiDocumentError.
    """
    try:
        async with asyncio.timeout(seconds):
            try:
                return await _follow(client, source, seconds, authentication)
            except (httpx.ReadError, httpx.RemoteProtocolError):  # a busy server broke off
                return await _follow(client, source, seconds, authentication)
    except BodyError as error:
        raise ApiDocumentError(f"{source} {error}") from error
    except TimeoutError as error:
        raise ApiDocumentError(f"{source} takes longer than {seconds:g} s to send its document") from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, HostError) as error:
        raise ApiDocumentError(f"{source} cannot be reached: {str(error) or type(error).__name__}") from error


async def _follow(client: httpx.AsyncClient, source: str, seconds: float, authentication: Authentication) -> bytes:
    url = source
    timeout = httpx.Timeout(**{**client.timeout.as_dict(), "read": seconds})
    for _ in range(_REDIRECTS):
        own = authentication if same_origin(url, source) else Authentication()
        async with client.stream(
            "GET",
            own.url(url),
            headers=own.merged(_HEADERS),
            timeout=timeout,
            extensions={CERTIFICATE: own.certificate},
            follow_redirects=False,
        ) as response:
            if response.is_success:
                return await read_body(response, MAX_DOCUMENT_BYTES)
            if response.next_request is None:
                status = response.status_code
                reason = f"{source} answered with status {status} instead of a document"
                if status in _DENIED:
                    raise DocumentDeniedError(reason, url, unknown=status == 401)
                raise ApiDocumentError(reason)
            url = str(response.next_request.url)
    raise ApiDocumentError(f"{source} redirects more than {_REDIRECTS} times")
