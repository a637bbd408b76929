"""Recorded answers as a newer document would have them: without what it no longer has. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from app.base.values import Json

_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_Schema = Mapping[str, Json]


def projected(value: Json, old: Json, new: Json) -> Json:
    """The value without the fields that only the old schema has, or that are of another type in the new one; None
    if that is true of all of it. What neither schema describes stays.

    >>> old = {"properties": {"id": {"type": "integer"}, "name": {}}}
    >>> projected({"id": 1, "name": "a", "x": 2}, old, {"properties": {"id": {"type": "string"}, "title": {}}})
    {'x': 2}
    """
    if not _accepts(new, value):
        return None
    if isinstance(value, list):
        return [projected(each, _items(old), _items(new)) for each in value]
    there = dict(_properties(new))
    if not isinstance(value, dict) or not there:
        return value
    before = dict(_properties(old))
    kept = {name: each for name, each in value.items() if name in there or name not in before}
    return {
        name: projected(each, before.get(name), there.get(name))
        for name, each in kept.items()
        if _accepts(there.get(name), each)
    }


def _accepts(schema: Json, value: Json) -> bool:
    """Whether the schema has the type of the value; one that says nothing has every type."""
    if not isinstance(schema, Mapping):
        return schema is not False
    named = schema.get("type", [])
    kinds = [_TYPES.get(each, object) for each in ([named] if isinstance(named, str) else named)]
    if kinds and not any(isinstance(value, kind) and _is_kind(value, kind) for kind in kinds):
        return bool(schema.get("nullable")) and value is None
    choices = [schema[word] for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list)]
    return all(any(_accepts(each, value) for each in branches) for branches in choices)


def _is_kind(value: Json, kind: object) -> bool:
    """A boolean is no number."""
    return not isinstance(value, bool) or kind in (bool, object)


def _properties(schema: Json) -> Iterator[tuple[str, Json]]:
    """Those of all branches."""
    if isinstance(schema, Mapping):
        found = schema.get("properties")
        yield from found.items() if isinstance(found, Mapping) else ()
        for word in ("allOf", "anyOf", "oneOf"):
            for branch in schema.get(word) or ():
                yield from _properties(branch)


def _items(schema: Json) -> Json:
    return schema.get("items") if isinstance(schema, Mapping) else None
