"""Services of generated worlds over HTTP: an ASGI application for all of them.

It is plain ASGI: the addresses differ from world to world, and a rollout makes thousands of calls.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from app.errors import NotFoundError
from app.records import Json


class WorldRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: tuple[str, ...]  # in the app
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower-case names
    body: bytes

    def fields(self) -> dict[str, Json]:
        """Of the body. Raises ServiceRefusal."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any]) if self.body else {}
        except msgspec.MsgspecError as error:
            raise ServiceRefusal(422, "the body is not a json object") from error


class WorldResponse(msgspec.Struct, frozen=True):
    status: int
    content: Json
    headers: tuple[tuple[str, str], ...] = ()


class ServiceRefusal(Exception):  # noqa: N818 - an answer of a service, as its API words it
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


Respond: TypeAlias = Callable[[str, str, WorldRequest], WorldResponse]
"""The answer to a request, given the ids of the world and the app. Raises NotFoundError for an unknown world."""


class WorldServices:
    """The ASGI application: `/{world}/{app}/...`."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        response = self._response(scope, body)
        headers = [(b"content-type", b"application/json")]
        headers += [(name.encode(), value.encode()) for name, value in response.headers]
        content = b"" if response.status == 204 else msgspec.json.encode(response.content)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _response(self, scope: Mapping[str, Any], body: bytes) -> WorldResponse:
        parts = [part for part in scope["path"].split("/") if part]
        if len(parts) < 2:
            return WorldResponse(404, {"message": "no such address"})
        request = WorldRequest(
            method=scope["method"],
            path=tuple(parts[2:]),
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
            body=body,
        )
        try:
            return self._respond(parts[0], parts[1], request)
        except NotFoundError as error:
            return WorldResponse(404, {"message": str(error)})
