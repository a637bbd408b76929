"""Which part sends the calls of an app: by HTTP, unless its protocol has a sender of its own."""

from collections.abc import Mapping
from typing import Protocol

from app.apis.catalog import App
from app.apis.mcp_document import PROTOCOL
from app.base.errors import HostError
from app.gateway.http_call import HttpCaller
from app.gateway.wire_request import WireRequest
from app.sandbox.protocol import Answer


class Caller(Protocol):
    """As `HttpCaller`."""

    async def send(self, request: WireRequest) -> Answer: ...


class Callers:
    """`special` are the senders of protocols that are more than single HTTP requests."""

    def __init__(self, http: HttpCaller, special: Mapping[str, Caller] | None = None) -> None:
        self._http = http
        self._special = special or {}

    def of(self, app: App) -> Caller:
        """Raises HostError for an MCP server where none is opened, as in a training world."""
        if app.protocol == PROTOCOL and PROTOCOL not in self._special:
            raise HostError("ApiError", f"{app.name} is an MCP server, and none is called here")
        return self._special.get(app.protocol, self._http)
