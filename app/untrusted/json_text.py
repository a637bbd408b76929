"""Decodes JSON of foreign origin within limits of values, depth and digits."""

import math

import msgspec

from app.records import Json

_MAX_INT_BITS = 1023  # the range of a float
_DECODER = msgspec.json.Decoder(float_hook=float)  # its own parser takes 10 us for some numbers of 17 digits


class JsonError(ValueError):
    """The text is not JSON, or too large or too deep."""


def decode_json(text: bytes, *, max_values: int, max_depth: int) -> Json:
    """The value, which every serializer of ours can store. Takes linear time.

    Raises JsonError also for NaN, numbers beyond a float, and half a surrogate pair.
    """
    if count_values(text) > max_values:
        raise JsonError(f"it holds more than {max_values:,} values")
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JsonError(str(error)) from error
    _check(value, max_depth)
    return value


def count_values(text: bytes) -> int:
    """The number of values in JSON text, without decoding it; exact if no space is between empty brackets."""
    marks = text.count(b",") + text.count(b"[") + text.count(b"{")
    if marks < 1000:
        return marks + 1
    parts = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')  # every second part is a string
    bare = b"".join(parts[::2])
    return 1 + sum(map(bare.count, (b",", b"[", b"{"))) - bare.count(b"[]") - bare.count(b"{}")


def _check(value: Json, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth + 1):
        below: list[Json] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            elif isinstance(each, int | float):
                check_number(each)
        if not below:
            return
        level = below
    raise _too_deep(max_depth)


def check_number(value: float) -> None:
    """Raises JsonError if it is beyond the range of a float."""
    if not is_in_range(value):
        much = f"an integer has more than {_MAX_INT_BITS} bits"
        raise JsonError(much if isinstance(value, int) else "a number is beyond the range of a float")


def is_in_range(value: float) -> bool:
    """Whether a number is within the range of a float."""
    return value.bit_length() <= _MAX_INT_BITS if isinstance(value, int) else math.isfinite(value)


def _too_deep(max_depth: int) -> JsonError:
    return JsonError(f"it is nested deeper than {max_depth}")
