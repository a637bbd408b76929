"""Values as their schema means them: whole numbers, and what is sent unasked. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.catalog import Operation, Parameter
from app.base.values import Json

_LARGEST: Final = 1 << 53  # up to which a float is exact
_BRANCHES: Final = 100  # of one schema: those that share parts unfold without bound
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def as_declared(operation: Operation, arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    """The arguments as they are sent, with those that nobody has to give.

    A float such as 2.0 is 2 wherever an integer is declared, and no other number.
    """
    unasked = {each.name: each.schema["default"] for each in operation.parameters if each.preset}
    if not any(map(_holds_whole_float, arguments.values())):
        return {**unasked, **arguments}
    schemas = {each.name: each.schema for each in operation.parameters}
    return {**unasked, **{name: _whole([schemas.get(name, {})], value) for name, value in arguments.items()}}


def preset(parameter: Parameter, *, with_default: bool = True) -> Parameter:
    """A required argument with one possible value, or a default, is one that nobody has to give.

    No default names what is changed: in a path it may be no more than an example.
    """
    value = (sent_unasked if with_default else only_value)(parameter.schema) if parameter.required else None
    if value is None:
        return parameter
    schema = {**parameter.schema, "default": value}
    return msgspec.structs.replace(parameter, required=False, preset=True, schema=schema)


def sent_unasked(schema: Mapping[str, Json]) -> Json:
    """The one possible value, or a default that is one; None if there is neither."""
    value = only_value(schema)
    default = schema.get("default") if value is None else value
    kinds = schema.get("type", [])
    expected = [each for kind in (kinds if isinstance(kinds, list) else [kinds]) for each in _TYPES.get(kind, ())]
    fits = not expected or type(default) in expected
    return default if fits and ("enum" not in schema or default in schema["enum"]) else None


def only_value(schema: Mapping[str, Json]) -> Json:
    """The value of a `const`, or of an `enum` of one; otherwise None."""
    enum = schema.get("enum")
    return schema.get("const", enum[0] if isinstance(enum, list) and len(enum) == 1 else None)


def _holds_whole_float(value: Json) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(_holds_whole_float, value))
    return _is_whole(value)


def _is_whole(value: Json) -> bool:
    return isinstance(value, float) and value.is_integer() and abs(value) <= _LARGEST


def _whole(schemas: list[dict[str, Json]], value: Json) -> Json:
    """The value, which may be described by any of the schemas."""
    branches = _branches(schemas)
    if isinstance(value, dict):
        return {name: _whole(_fields(branches, name), each) for name, each in value.items()}
    if isinstance(value, list):
        items = [each["items"] for each in branches if isinstance(each.get("items"), dict)]
        return [_whole(items, each) for each in value]
    if not _is_whole(value):
        return value
    kinds = {kind for each in branches for kind in _listed(each.get("type"))}
    return int(value) if "integer" in kinds and "number" not in kinds else value


def _branches(schemas: list[dict[str, Json]]) -> list[dict[str, Json]]:
    found = list(schemas)
    for each in found:
        for word in ("anyOf", "oneOf", "allOf"):
            found += each.get(word, ())[: _BRANCHES - len(found)] if len(found) < _BRANCHES else ()
    return found


def _fields(branches: list[dict[str, Json]], name: str) -> list[dict[str, Json]]:
    named = [each.get("properties", {}).get(name, each.get("additionalProperties")) for each in branches]
    return [each for each in named if isinstance(each, dict)]


def _listed(kind: Json) -> list[Json]:
    return kind if isinstance(kind, list) else [kind]
