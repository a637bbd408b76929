"""What PostgreSQL can hold. Sandboxed code and live APIs may say more: NUL, half of a surrogate pair, NaN."""

import json
import math

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


def _clean(value: Json) -> Json:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(str(key)): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    return value
