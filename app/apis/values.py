"""Bytes among arguments and answers: which parameters take them, and how they are recorded.

A file is bytes, or [name, bytes].
"""

import hashlib
from collections.abc import Mapping

from app.apis.catalog import Body, Operation, Parameter
from app.apis.media_types import bare, is_declared_json, is_form, is_json_lines
from app.base.values import Json

_LENGTH, _HASH = "$bytes", "sha256"
_ALTERNATIVES = 100  # of one schema: those that share parts unfold without bound


def is_binary(schema: Mapping[str, Json]) -> bool:
    """Whether the values of a schema, but for null, are bytes, in OpenAPI 3.0 or 3.1.

    >>> is_binary({"type": ["string", "null"], "format": "binary"}), is_binary({"contentMediaType": "image/png"})
    (True, True)
    """
    kind = schema.get("type", "string")
    if [each for each in (kind if isinstance(kind, list) else [kind]) if each != "null"] != ["string"]:
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
        found += each.get("anyOf", ())[: _ALTERNATIVES - len(found)]
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
    if isinstance(value, bytes):
        return True
    match value:
        case [str(), bytes()]:
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
