"""The frames between host and sandbox: a 4-byte length, then JSON. Used by both ends: stdlib only."""

import json
import math
from typing import Any, ClassVar

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
