"""The names of JSON Schema types."""

from app.apis.binary_values import is_binary
from app.base.values import Json

_ALTERNATIVES = 100  # that the name of a type is made of
_NOTHING: dict[str, Json] = {"not": {}}  # the schema `false`


def type_name(schema: dict[str, Json]) -> str:
    """The JSON Schema type, alternatives joined with `or`.

    >>> type_name({"anyOf": [{"type": "string"}, {"type": "null"}]}), type_name({"format": "binary"})
    ('string or null', 'bytes')
    """
    return _Types().of(schema)


def map_values(schema: dict[str, Json]) -> dict[str, Json] | None:
    """The schema of the values of an object whose keys are no names of fields, such as ids; None for others.

    >>> map_values({"type": "object", "additionalProperties": {"type": "string"}})
    {'type': 'string'}
    """
    if schema.get("properties") or "object" not in type_name(schema).split():
        return None
    patterns = schema.get("patternProperties")
    values = next(iter(patterns.values()), None) if patterns else schema.get("additionalProperties")
    return values if isinstance(values, dict) and values not in ({}, _NOTHING) else None


class _Types:
    """Names of types, for a limited number of schemas: alternatives that share parts unfold without bound."""

    def __init__(self) -> None:
        self._left = _ALTERNATIVES

    def of(self, schema: dict[str, Json]) -> str:
        self._left -= 1
        kind = schema.get("type")
        if isinstance(kind, list):
            return " or ".join("bytes" if each == "string" and is_binary(schema) else each for each in kind)
        if is_binary(schema):
            return "bytes"
        if kind:
            return str(kind)
        choices = schema.get("anyOf")
        if choices and self._left > 0:
            return " or ".join(dict.fromkeys(self.of(choice) for choice in choices[: self._left]))
        if "properties" in schema:
            return "object"
        return "array" if "items" in schema else "any"
