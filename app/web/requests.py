"""What all routes share: requests whose JSON is decoded within limits, since all projects share the loop that
decodes it, and answers to OPTIONS.
"""

from http import HTTPMethod
from typing import Any, cast

import msgspec
from litestar import Litestar, Request
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.exceptions import SerializationException
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Empty, Message, Receive, Scope, Send

from app.base.untrusted import JsonError, decode_json
from app.base.values import Json

_VALUES = 300_000  # of a body
_DEPTH = 100
_TEXT = msgspec.json.Decoder(str)
_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonRequest(Request[Any, Any, Any]):
    """A body of too many values, or nested too deeply, is invalid JSON."""

    async def json(self) -> Json:
        if self._json is Empty:
            try:
                self._json = self.decode(await self.body() or b"null")
            except JsonError as error:
                raise SerializationException(str(error)) from error
        return self._json

    def decode(self, body: bytes) -> Json:
        """Raises JsonError."""
        return decode_json(body, max_values=_VALUES, max_depth=_DEPTH)


class DocumentRequest(JsonRequest):
    """The field `document` may be of any size: an object is passed on as text, not decoded."""

    def decode(self, body: bytes) -> Json:
        try:
            return {name: self._field(name, bytes(value)) for name, value in _FIELDS.decode(body).items()}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return super().decode(body)  # it says what is wrong

    def _field(self, name: str, value: bytes) -> Json:
        if name == "document" and value.startswith(b"{"):
            return value.decode()
        if name == "document" and value.startswith(b'"'):
            return _TEXT.decode(value)  # one value: there is nothing to count
        return super().decode(value)


def answer_options(app: ASGIApp) -> ASGIApp:
    """A middleware."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] != HTTPMethod.OPTIONS:
            await app(scope, receive, send)
            return
        allowed = ", ".join(sorted(_methods(scope["litestar_app"], scope["path_template"])))

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableScopeHeaders.from_message(message)["Allow"] = allowed
            await send(message)

        await app(scope, receive, send_allowed)

    return answered


def _methods(app: Litestar, path: str) -> set[str]:
    routes = (route for route in app.routes if isinstance(route, HTTPRoute) and route.path_format == path)
    return {cast("str", method) for route in routes for method in route.methods}
