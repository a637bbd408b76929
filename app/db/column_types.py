"""What can be stored. Sandboxed code and live APIs may say more: NUL, half of a surrogate pair, NaN, 2 ** 99."""

import json
import math

import msgspec
from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator

from app.records import Json

_LOST = "\N{REPLACEMENT CHARACTER}"


class Prose(TypeDecorator[str]):
    """Text in which what cannot be stored is replaced, so that odd output never fails a task."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else storable(value)


def storable(value: str) -> str:
    r"""
    >>> storable("a\x00b")
    'a�b'
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value.replace("\x00", _LOST)


def to_json(value: Json) -> str:
    """For JSONB columns. Numbers that JSON does not know become null.

    >>> to_json({"total": float("nan")})
    '{"total": null}'
    """
    return json.dumps(_clean(value))


def pack(record: msgspec.Struct) -> bytes:
    """As msgpack. Only what msgpack cannot say is changed, and a record without such comes back equal."""
    try:
        return msgspec.msgpack.encode(record)
    except (UnicodeEncodeError, OverflowError):
        return msgspec.msgpack.encode(_clean(msgspec.to_builtins(record), longest_int=63))


def _clean(value: Json, longest_int: int | None = None) -> Json:
    """`longest_int`: in bits; a longer one becomes text."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if longest_int is None or value.bit_length() <= longest_int else str(value)
    if isinstance(value, dict):
        return {storable(str(key)): _clean(each, longest_int) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each, longest_int) for each in value]
    return value
