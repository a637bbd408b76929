"""Values that cross between the processes of a session: JSON and some tagged kinds. For both ends: stdlib only.

A value of a tagged kind is {"$": kind, "v": its parts}. Nothing is pickled, and no code of a value's class runs.
"""

import base64
import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from app.sandbox.frames import PlainCopy

TAG = "$"
_AROUND = 4  # brackets of a message around a value
_JSON = frozenset((str, int, bool, type(None), float, list, dict, tuple))


class Encoder(PlainCopy):
    """Encodes the values of one message. `extra` gives (kind, parts) for further types, and None for all others.

    Raises TypeError for a type that is not plain, ValueError for values too large or too deep.
    """

    refusal = (
        "is not a plain value: pass None, bool, int, float, str, bytes, Decimal, dates, times, or lists, tuples, "
        "sets and dicts of these"
    )

    def __init__(
        self, max_bytes: int, extra: Callable[[Any], tuple[str, Any] | None] = lambda _value: None
    ) -> None:
        super().__init__(max_bytes)
        self._extra = extra

    def encode(self, value: Any) -> Any:
        self._enter(1, _AROUND)
        return self.copy(value, _AROUND)

    def copy(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _JSON:
            return super().copy(value, depth)
        parts = _PARTS.get(kind)
        if parts is not None:
            return self._tagged(kind.__name__, parts(value), depth)
        special = self._extra(value)
        if special is not None:
            return self._tagged(*special, depth)
        return super().copy(value, depth)

    def number(self, value: float, depth: int) -> Any:
        if math.isfinite(float.__float__(value)):
            return super().number(value, depth)
        return self._tagged("float", float.__repr__(value), depth)

    def row(self, value: tuple[Any, ...], depth: int) -> Any:
        return self._tagged("tuple", list(tuple.__iter__(value)), depth)

    def mapping(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str and key != TAG for key in dict.keys(value)):
            return super().mapping(value, depth)
        return self._tagged("dict", [[key, item] for key, item in dict.items(value)], depth)

    def _tagged(self, kind: str, parts: Any, depth: int) -> Any:
        self._enter(2, depth + 1)
        return {TAG: kind, "v": self.copy(parts, depth + 1)}


Encoder.copiers = (
    (list, Encoder.sequence),
    (dict, Encoder.mapping),
    (float, Encoder.number),
    (str, Encoder.text),
    (int, Encoder.integer),
    (tuple, Encoder.row),
)


def decode(value: Any, extra: Callable[[str, Any], Any] | None = None) -> Any:
    """The value that was encoded. `extra` makes kinds that only a caller knows. Raises ValueError if invalid."""
    if type(value) is list:
        return [decode(item, extra) for item in value]
    if type(value) is not dict:
        return value
    if TAG not in value:
        return {key: decode(item, extra) for key, item in value.items()}
    kind, parts = value[TAG], decode(value.get("v"), extra)
    try:
        make = _MAKERS.get(kind)
        if make is not None:
            return make(parts)
        if extra is not None:
            return extra(kind, parts)
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ValueError(f"not a {str(kind)[:40]}: {error}") from error
    raise ValueError(f"unknown kind {str(kind)[:40]!r}")


def readable(value: Any) -> Any:
    """An encoded value as JSON for people: tuples and sets as lists, dates as text."""
    if type(value) is list:
        return [readable(item) for item in value]
    if type(value) is dict:
        if TAG in value:
            return readable(value.get("v"))
        return {key: readable(item) for key, item in value.items()}
    return value


def _zone(zone: dt.tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    if type(zone) is dt.timezone:
        return zone.utcoffset(None).total_seconds()
    raise TypeError(f"a time zone of type {type(zone).__name__[:80]} is not a plain value")


def _in_zone(zone: Any) -> dt.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        return ZoneInfo(zone)
    return dt.timezone(dt.timedelta(seconds=zone)) if zone else dt.UTC


def _moment(value: Any) -> Any:
    return [value.replace(tzinfo=None).isoformat(), _zone(value.tzinfo), value.fold]


def _make_moment(kind: Any, parts: Any) -> Any:
    text, zone, fold = parts
    return kind.fromisoformat(text).replace(tzinfo=_in_zone(zone), fold=fold)


_PARTS: dict[type, Callable[[Any], Any]] = {
    set: list,
    frozenset: list,
    bytes: lambda value: base64.b64encode(value).decode(),
    bytearray: lambda value: base64.b64encode(value).decode(),
    range: lambda value: [value.start, value.stop, value.step],
    type({}.keys()): list,
    type({}.values()): list,
    type({}.items()): list,
    complex: lambda value: [value.real, value.imag],
    Decimal: str,
    dt.datetime: _moment,
    dt.date: dt.date.isoformat,
    dt.time: _moment,
    dt.timedelta: lambda value: [value.days, value.seconds, value.microseconds],
}
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "float": float,
    "bytes": base64.b64decode,
    "bytearray": lambda parts: bytearray(base64.b64decode(parts)),
    "range": lambda parts: range(*parts),
    "dict_keys": list,
    "dict_values": list,
    "dict_items": list,
    "complex": lambda parts: complex(*parts),
    "Decimal": Decimal,
    "datetime": partial(_make_moment, dt.datetime),
    "date": dt.date.fromisoformat,
    "time": partial(_make_moment, dt.time),
    "timedelta": lambda parts: dt.timedelta(*parts),
}
