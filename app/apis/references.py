"""Resolves the references of one document. Schemas become JSON Schema 2020-12 without references."""

import re
from collections.abc import Mapping
from typing import Any

from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

from app.apis.merge import merged
from app.errors import ApiDocumentError
from app.records import Json

_DEPTH = 8  # of nested references; below this a schema is reduced to its type
_ALIASES = 20  # references that point to another reference
_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_TEXTS = {"description", "title", "format", "contentEncoding", "contentMediaType"}
_FLAGS = {"uniqueItems", "readOnly", "writeOnly", "deprecated"}
_ONE = {"items", "additionalProperties", "not", "contains", "propertyNames"}
_MANY = {"allOf", "anyOf", "oneOf", "prefixItems"}
_NAMED = {"properties", "patternProperties"}


class References:
    """The `$ref`s of one document. Each schema is resolved once per depth and shared, never copied.

    Cycles are cut by depth alone, so that a schema is the same wherever it is first used.
    """

    def __init__(self, document: Mapping[str, Json]) -> None:
        self._resolver = Registry().with_resource("", Resource.opaque(document)).resolver()
        self._schemas: dict[tuple[str, int], dict[str, Json]] = {}

    def follow(self, node: Json, where: str) -> Mapping[str, Json]:
        """The object itself, or the one its reference points to. Raises ApiDocumentError with the place."""
        for _ in range(_ALIASES):
            if not isinstance(node, Mapping):
                raise ApiDocumentError(f"{where}: expected an object, found {_kind(node)}")
            if not isinstance(node.get("$ref"), str):
                return node
            node = self._lookup(node["$ref"], where)
        raise ApiDocumentError(f"{where}: the reference leads back to itself")

    def schema(self, node: Json, where: str, depth: int = 0) -> dict[str, Json]:
        """A schema with its references resolved and OpenAPI 3.0 keywords translated to JSON Schema."""
        if isinstance(node, bool):
            return {} if node else {"not": {}}
        if not isinstance(node, Mapping):
            raise ApiDocumentError(f"{where}: expected a schema, found {_kind(node)}")
        result = self._plain(node, where, depth)
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = self._referred(reference, where, depth)
            result = _without_read_only(merged({"allOf": [target], **result})) if result else target
        return _nullable(result) if node.get("nullable") is True else result

    def _referred(self, reference: str, where: str, depth: int) -> dict[str, Json]:
        key = (reference, depth)
        if key not in self._schemas:
            target = self._lookup(reference, where)
            if depth >= _DEPTH:
                kind = target.get("type") if isinstance(target, Mapping) else None
                self._schemas[key] = _typed(kind)
            else:
                self._schemas[key] = self.schema(target, reference, depth + 1)
        return self._schemas[key]

    def _lookup(self, reference: str, where: str) -> Json:
        if not reference.startswith("#"):
            raise ApiDocumentError(
                f"{where}: {reference!r} refers to another document; bundle everything into one document first"
            )
        try:  # ValueError, TypeError: a list index that is not a number, an item of a scalar
            return self._resolver.lookup(reference).contents
        except (
            Unresolvable,
            ValueError,
            TypeError,
        ) as error:
            raise ApiDocumentError(
                f"{where}: {reference!r} refers to something the document does not have"
            ) from error

    def _plain(self, node: Mapping[str, Json], where: str, depth: int) -> dict[str, Json]:
        result: dict[str, Json] = {}
        for word, value in node.items():
            if word in _ONE:
                result[word] = self.schema(value, where, depth)
            elif word in _MANY and isinstance(value, list) and value:
                result[word] = [self.schema(each, where, depth) for each in value]
            elif word in _NAMED and isinstance(value, Mapping):
                result[word] = {name: self.schema(each, f"{where}/{name}", depth) for name, each in value.items()}
            elif _usable(word, value):
                result[word] = value
        return _without_read_only(merged(_bounded(result | _typed(node.get("type")), node)))


def _usable(word: str, value: Any) -> bool:
    """Whether it is a JSON Schema keyword with a valid value; all others are dropped."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if word in _NUMBERS:
        return number and (word != "multipleOf" or value > 0)
    if word in _COUNTS:
        return number and value >= 0
    if word in _TEXTS:
        return isinstance(value, str)
    if word in _FLAGS:
        return isinstance(value, bool)
    if word == "required":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    if word == "pattern":
        return isinstance(value, str) and _compiles(value)
    return word in {"const", "default"} or (word == "enum" and isinstance(value, list))


def _compiles(pattern: str) -> bool:
    """Patterns are ECMAScript; those that Python cannot compile are left to the server."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _typed(kind: Json) -> dict[str, Json]:
    kinds = kind if isinstance(kind, list) else [kind]
    return {"type": kind} if kinds and all(isinstance(each, str) and each in _TYPES for each in kinds) else {}


def _bounded(schema: dict[str, Json], node: Mapping[str, Json]) -> dict[str, Json]:
    """OpenAPI 3.0 has `exclusiveMinimum: true` next to the bound; in JSON Schema it is the bound."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if node.get(exclusive) is True and bound in schema:
            schema[exclusive] = schema.pop(bound)
    return schema


def _without_read_only(schema: dict[str, Json]) -> dict[str, Json]:
    """Drop read-only fields from `required`: they are required of responses only."""
    fields = schema.get("properties", {})
    needed = [name for name in schema.get("required", ()) if fields.get(name, {}).get("readOnly") is not True]
    return schema if len(needed) == len(schema.get("required", ())) else {**schema, "required": needed}


def _nullable(schema: dict[str, Json]) -> dict[str, Json]:
    """OpenAPI 3.0 has `nullable: true`; JSON Schema has the type null."""
    if schema.keys() & {"anyOf", "oneOf", "allOf", "not", "const"}:
        return {"anyOf": [schema, {"type": "null"}]}
    result = dict(schema)
    if kind := schema.get("type"):
        result["type"] = [*(kind if isinstance(kind, list) else [kind]), "null"]
    if None not in schema.get("enum", [None]):
        result["enum"] = [*schema["enum"], None]
    return result


def _kind(node: Json) -> str:
    return "nothing" if node is None else f"a {type(node).__name__}"
