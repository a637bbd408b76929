"""Requests whose JSON is decoded within limits: all projects share the event loop that decodes it."""

from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import SerializationException
from litestar.types import Empty

from app.records import Json
from app.untrusted.json_text import JsonError, decode_json

_VALUES = 300_000
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
