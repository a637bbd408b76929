"""The interface of an API protocol, a part of the entry-point group `sage.api_protocols`."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from app.apis.catalog import App, Operation
from app.base.values import Json


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
        ...

    def parse(self, name: str, document: Mapping[str, Json], source: str | None, server: str | None) -> App:
        """The app that a document describes. Raises ApiDocumentError with the problem and its place.

        `server` overrides the server in the document; `source` is what a relative server is relative to.
        """
        ...

    def encode(self, operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
        """The request of a call. Raises HostError, a ValidationError, for a value that cannot be encoded."""
        ...
