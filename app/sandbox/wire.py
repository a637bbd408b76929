"""What crosses between host and sandbox, for both ends, with the standard library only: frames (a 4-byte length,
then JSON), arguments of API calls with bytes in them, values of tagged kinds, and the mark of a hint after an
exception.
"""

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

LENGTH_BYTES = 4
MAX_DEPTH = 64
MAX_NODES = 200_000
_FLOAT_BYTES = 17
_NODE_BYTES = 2
MAX_INT_BITS = 1023  # the range of a float; parsing longer ones takes quadratic time
_TOO_LARGE = "it is too large for one message"

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def pack(message: Any, max_bytes: int) -> bytes:
    """Encode a plain message as a frame. Raises ValueError if it is larger than allowed."""
    return frame(_encode(message).encode(), max_bytes)


def frame(body: bytes, max_bytes: int) -> bytes:
    """A frame around an encoded message. Raises ValueError if it is larger than allowed."""
    if len(body) > max_bytes:
        raise ValueError(f"it takes {len(body):,} bytes, at most {max_bytes:,} are allowed")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def plain(value: Any, max_bytes: int, max_nodes: int = MAX_NODES) -> Any:
    """A copy made of exact builtin types. Runs no code of the value's classes and never calls repr.

    Depth, nodes and bytes are limited while copying, so a small object that expands to a huge one costs little.
    Raises TypeError for types that JSON lacks, ValueError for values too large, too deep or not finite.
    """
    return PlainCopy(max_bytes, max_nodes).copy(value, 0)


class PlainCopy:
    """A copy in progress. A container pays for its items before it copies them."""

    refusal = "is not JSON: pass None, bool, int, float, str, list or dict"
    copiers: ClassVar[tuple[tuple[type, Any], ...]] = ()  # of the types to copy, and how

    def __init__(self, max_bytes: int, max_nodes: int = MAX_NODES) -> None:
        self._max_nodes = max_nodes
        self._nodes_left = max_nodes - 1
        self._bytes_left = max_bytes - _NODE_BYTES

    def copy(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value, depth)
        if kind is int:
            return self.integer(value, depth)
        if value is None or kind is bool:
            return value
        for base, copy in self.copiers:
            if kind is base or issubclass(kind, base):
                return copy(self, value, depth)
        raise TypeError(f"{_name(kind)} {self.refusal}")

    def text(self, value: str, _depth: int) -> str:
        exact = str.__str__(value)
        self._bytes_left -= len(exact) if str.isascii(exact) else len(str.encode(exact))
        if self._bytes_left < 0:
            raise ValueError(_TOO_LARGE)
        return exact

    def integer(self, value: int, _depth: int) -> int:
        exact = int.__int__(value)
        bits = int.bit_length(exact)
        if bits > MAX_INT_BITS:
            raise ValueError(f"an integer has more than {MAX_INT_BITS} bits")
        self._bytes_left -= bits // 3
        if self._bytes_left < 0:
            raise ValueError(_TOO_LARGE)
        return exact

    def number(self, value: float, _depth: int) -> float:
        exact = float.__float__(value)
        if not math.isfinite(exact):
            raise ValueError("nan and infinity are not JSON")
        self._bytes_left -= _FLOAT_BYTES
        if self._bytes_left < 0:
            raise ValueError(_TOO_LARGE)
        return exact

    def sequence(self, value: list[Any], depth: int) -> list[Any]:
        self._enter(list.__len__(value), depth + 1)
        return [self.copy(item, depth + 1) for item in list.__iter__(value)]

    def row(self, value: tuple[Any, ...], depth: int) -> list[Any]:
        self._enter(tuple.__len__(value), depth + 1)
        return [self.copy(item, depth + 1) for item in tuple.__iter__(value)]

    def mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        self._enter(dict.__len__(value), depth + 1)
        result = {}
        for key, item in dict.items(value):
            if not issubclass(type(key), str):
                raise TypeError(f"the keys of a JSON object are str, not {_name(type(key))}")
            result[self.text(key, depth)] = self.copy(item, depth + 1)
        return result

    def _enter(self, items: int, depth: int) -> None:
        """Pay for the items of a container, which are `depth` levels down."""
        self._nodes_left -= items
        if self._nodes_left < 0:
            raise ValueError(f"it holds more than {self._max_nodes:,} values")
        self._bytes_left -= items * _NODE_BYTES
        if self._bytes_left < 0:
            raise ValueError(_TOO_LARGE)
        if items and depth > MAX_DEPTH:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH}")


PlainCopy.copiers = (
    (list, PlainCopy.sequence),
    (dict, PlainCopy.mapping),
    (float, PlainCopy.number),
    (str, PlainCopy.text),
    (int, PlainCopy.integer),
    (tuple, PlainCopy.row),
)


def _name(kind: type) -> str:
    return str.__str__(type.__dict__["__name__"].__get__(kind))[:80]


_TAG, _BYTES, _OBJECT = "$", "bytes", "object"
MARK = b'"$"'  # in every frame that has such values

_encode64, _decode64 = base64.b64encode, base64.b64decode


class ArgumentEncoder(PlainCopy):
    """A copy of arguments as JSON. Raises as `plain` does."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        self._enter(2, 1)
        return [self.sequence(list(args), 1), super().mapping(kwargs, 1)]

    def binary(self, value: bytes, depth: int) -> dict[str, str]:
        self._enter(2, depth + 1)
        size = -(-bytes.__len__(value) // 3) * 4
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ValueError("it is too large for one message")
        return {_TAG: _BYTES, "v": _encode64(memoryview(value)).decode()}

    def mapping(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        if not any(issubclass(type(key), str) and str.__eq__(key, _TAG) for key in dict.keys(value)):
            return super().mapping(value, depth)
        self._enter(2, depth + 1)
        return {_TAG: _OBJECT, "v": super().mapping(value, depth + 1)}


ArgumentEncoder.copiers = (
    (dict, ArgumentEncoder.mapping),
    *((kind, copier) for kind, copier in PlainCopy.copiers if kind is not dict),
    (bytes, ArgumentEncoder.binary),
)


def encode_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], max_bytes: int) -> list[Any]:
    """[args, kwargs] as JSON. Raises TypeError or ValueError."""
    return ArgumentEncoder(max_bytes).call(args, kwargs)


def decode_arguments(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What was encoded. Raises ValueError for what no encoder makes."""
    return [_decode(each) for each in args], {name: _decode(each) for name, each in kwargs.items()}


def _decode(value: Any) -> Any:
    if type(value) is list:
        return [_decode(each) for each in value]
    if type(value) is not dict:
        return value
    if _TAG not in value:
        return {name: _decode(each) for name, each in value.items()}
    content = value.get("v")
    if value[_TAG] == _BYTES and type(content) is str:
        return _decode64(content, validate=True)  # binascii.Error is a ValueError
    if value[_TAG] == _OBJECT and type(content) is dict:
        return {name: _decode(each) for name, each in content.items()}
    raise ValueError("not an argument")


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


NOTE = "Hint: "  # begins the note of an exception
HINT = f". {NOTE}"
NO_FUNCTIONS = "no function was given for this task"  # of a function that is not defined
