"""Values of arguments and answers as their schema means them: bytes, whole numbers, and what is sent unasked.
Pure.

A file is bytes, or [name, bytes]; bytes are recorded by length and hash.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.catalog import Body, Operation, Parameter
from app.apis.media_types import bare, is_declared_json, is_form, is_json_lines
from app.base.values import Json

_LENGTH, _HASH = "$bytes", "sha256"
_BRANCHES: Final = 100  # of one schema: those that share parts unfold without bound
_LARGEST: Final = 1 << 53  # up to which a float is exact
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""Of values, by the names of JSON Schema."""


def is_binary(schema: Mapping[str, Json]) -> bool:
    """Whether the values of a schema, but for null, are bytes, in OpenAPI 3.0 or 3.1.

    >>> is_binary({"type": ["string", "null"], "format": "binary"}), is_binary({"contentMediaType": "image/png"})
    (True, True)
    """
    kind = schema.get("type", "string")
    if [each for each in _listed(kind) if each != "null"] != ["string"]:
        return False
    encoded = "contentEncoding" in schema or "json" in str(schema.get("contentMediaType"))
    return schema.get("format") == "binary" or ("contentMediaType" in schema and not encoded)


def alternatives(schema: dict[str, Json]) -> list[dict[str, Json]]:
    """What a value other than null may be: the branches of each `anyOf`, or else the schema itself.

    >>> alternatives({"anyOf": [{"type": "string", "format": "binary"}, {"type": "null"}]})
    [{'type': 'string', 'format': 'binary'}]
    """
    found = [schema]
    for each in found:
        found += each.get("anyOf", ())[: _BRANCHES - len(found)]
    return [each for each in found if "anyOf" not in each and each.get("type") != "null"] or [schema]


def part_schemas(schema: dict[str, Json]) -> list[dict[str, Json]]:
    """What a part of a form may be: of a list, its items are the parts."""
    return [part for each in alternatives(schema) for part in alternatives(each.get("items", each))]


def takes_bytes(operation: Operation, parameter: Parameter, value: Json) -> bool:
    """Whether an argument may be this value: files of a form, or bytes as a body that is neither form nor JSON."""
    return parameter.place == "body" and any(
        body_takes_bytes(body, field, value)
        for body in operation.offered_bodies
        for field in body.fields
        if field.wire_name == parameter.wire_name
    )


def body_takes_bytes(body: Body, field: Parameter, value: Json) -> bool:
    """As `takes_bytes`, of one of the bodies of an operation."""
    kind = bare(body.media_type)
    if is_form(kind) and not body.is_object:  # which fields it has depends on others: the server knows them
        parts = value.values() if isinstance(value, dict) else ()
        return bool(parts) and all(are_files(each) or not holds_bytes(each) for each in parts)
    if is_form(kind):
        return are_files(value) and any(map(is_binary, part_schemas(field.schema)))
    return isinstance(value, bytes) and not (is_declared_json(kind) or is_json_lines(kind))


def are_files(value: Json) -> bool:
    """Whether a value is bytes, a named file, or a list of these."""
    return is_file(value) or (isinstance(value, list) and bool(value) and all(map(is_file, value)))


def is_file(value: Json) -> bool:
    match value:
        case bytes() | [str(), bytes()]:
            return True
    return False


def holds_bytes(value: Json) -> bool:
    """Whether any part of a value is bytes."""
    if isinstance(value, dict):
        return any(map(holds_bytes, value.values()))
    if isinstance(value, list):
        return any(map(holds_bytes, value))
    return isinstance(value, bytes)


def recordable(value: Json) -> Json:
    """The value as JSON: bytes by length and hash.

    >>> recordable({"file": ["a.txt", b"abc"]})["file"][1]["$bytes"]
    3
    """
    if isinstance(value, bytes):
        return {_LENGTH: len(value), _HASH: hashlib.sha256(value).hexdigest()}
    if isinstance(value, list) and holds_bytes(value):
        return list(map(recordable, value))
    if isinstance(value, dict) and holds_bytes(value):
        return {name: recordable(each) for name, each in value.items()}
    return value


def readable(value: Json) -> Json:
    """A recorded value for people: bytes as a text about them.

    >>> readable([{"$bytes": 5213, "sha256": "9f86d0"}, 7])
    ['5,213 bytes, sha256 9f86d0', 7]
    """
    if (digest := recorded_hash(value)) is not None:
        return f"{value[_LENGTH]:,} bytes, {_HASH} {digest}"
    if isinstance(value, list):
        return list(map(readable, value))
    return {name: readable(each) for name, each in value.items()} if isinstance(value, dict) else value


def recorded_hash(value: Json) -> str | None:
    """The hash of bytes that were recorded; None for another value."""
    match value:
        case {"$bytes": int(), "sha256": str(digest), **rest} if not rest:
            return digest
    return None


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
    expected = [each for kind in _listed(kinds) for each in TYPES.get(kind, ())]
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
