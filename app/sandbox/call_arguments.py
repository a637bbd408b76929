"""Arguments of API calls on their way out of the sandbox: JSON, and bytes. For both ends: stdlib only.

Bytes are {"$": "bytes", "v": base64}, and an object that has a "$" itself is {"$": "object", "v": the object}.
"""

import base64
from typing import Any

from app.sandbox.frames import PlainCopy

_TAG, _BYTES, _OBJECT = "$", "bytes", "object"
MARK = b'"$"'  # in every frame that has such values

_encode64, _decode64 = base64.b64encode, base64.b64decode


class ArgumentEncoder(PlainCopy):
    """A copy of arguments as JSON. Raises as `frames.plain` does."""

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
