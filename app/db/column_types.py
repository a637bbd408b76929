"""Makes values storable: sandboxed code and live APIs may return NUL, lone surrogates, NaN or 2 ** 99."""

import json
import math

import msgspec
from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

from app.records import Json

_LOST = "\N{REPLACEMENT CHARACTER}"


class CleanText(TypeDecorator[str]):
    """Text with characters that cannot be stored replaced, so that unusual output never fails a task."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else clean_text(value)


def clean_text(value: str) -> str:
    r"""Replace NUL and lone surrogates.

    >>> clean_text("a\x00b")
    'a�b'
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value.replace("\x00", _LOST)


def to_json(value: Json) -> str:
    """Serialize for JSONB columns. NaN and infinities become null.

    >>> to_json({"total": float("nan")})
    '{"total": null}'
    """
    return json.dumps(_clean(value))


def pack(record: msgspec.Struct) -> bytes:
    """Encode as msgpack. Changes only values that msgpack cannot represent."""
    try:
        return msgspec.msgpack.encode(record)
    except (UnicodeEncodeError, OverflowError):
        return msgspec.msgpack.encode(_clean(msgspec.to_builtins(record), max_bits=63))


def _clean(value: Json, max_bits: int | None = None) -> Json:
    """Integers of more than `max_bits` become text."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if max_bits is None or value.bit_length() <= max_bits else str(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(each, max_bits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each, max_bits) for each in value]
    return value
