"""One operation of a document, called through the gateway: what is received at the other end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import Message
from email.parser import BytesParser

from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.catalog import Catalog, Operation
from app.apis.documents.protocols import parse_document
from app.base.values import Json
from tests.support.recording_server import Received, RecordingServer, recording_server


class Wire:
    """The operation, and the server that is called."""

    def __init__(self, operation: Operation, gateway: Gateway, server: RecordingServer) -> None:
        self.operation = operation
        self.gateway = gateway
        self.server = server

    async def sent(self, *args: Json, **kwargs: Json) -> Received:
        """What a call with these arguments puts on the wire."""
        await self.gateway(self.operation.api, list(args), kwargs)
        return self.server.received[-1]


@asynccontextmanager
async def wire(
    node: Json, *, method: str = "get", path: str = "/x", document: dict[str, Json] | None = None
) -> AsyncIterator[Wire]:
    """`document` is what else the document says; without it, that it is of OpenAPI 3.2."""
    described = {"paths": {path: {method: node}}, **(document or {"openapi": "3.2.0"})}
    async with recording_server() as server, open_client(allow_private_hosts=True) as client:
        app = parse_document("t", described, server=server.url)
        assert not app.left_out, app.left_out
        [operation] = app.operations.values()
        yield Wire(operation, Gateway(Catalog({"t": app}), client), server)


def parts_of(received: Received) -> dict[str, tuple[str, str | None, bytes]]:
    """Media type, file name and content of each part of a form, by name."""
    head = f"Content-Type: {received.headers['content-type']}\r\n\r\n".encode()
    found: dict[str, tuple[str, str | None, bytes]] = {}
    for part in BytesParser().parsebytes(head + received.body).get_payload():
        assert isinstance(part, Message)
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        assert isinstance(content, bytes)
        found[str(name)] = (part.get_content_type(), part.get_filename(), content)
    return found
