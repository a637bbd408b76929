"""Resolves the references of one document. Schemas become JSON Schema 2020-12 without references."""

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

from app.apis.document_budget import DocumentBudget
from app.apis.merge import Merges, merged
from app.apis.patterns import compiled
from app.apis.yaml_json import to_json_text
from app.base.errors import ApiDocumentError
from app.base.untrusted import JsonError, decode_json, is_in_range
from app.base.values import Json

_DEPTH = 8  # of nested references; below this a schema is reduced to its type
_ALIASES = 20  # references that point to another reference
_REFERENCE_CHARS = 2_000
_LOOK_UP_STEPS = 10
_PATTERN_STEPS = 30
_PLACE_CHARS = 500  # of the path to a place, in messages
_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_TEXTS = {"description", "title", "format", "contentEncoding", "contentMediaType"}
_FLAGS = {"uniqueItems", "readOnly", "writeOnly", "deprecated"}
_ONE = {"items", "additionalProperties", "not", "contains", "propertyNames"}
_MANY = {"allOf", "anyOf", "prefixItems"}
_NAMED = {"properties", "patternProperties"}


class UnknownTargetError(ApiDocumentError):
    """A reference leads nowhere. As a schema, that is any value."""


class References:
    """The `$ref`s of one document. Each schema is resolved once per depth and shared, never copied.

    Cycles are cut by depth alone, so that a schema is the same wherever it is first used.
    """

    def __init__(self, document: Mapping[str, Json]) -> None:
        self._resolver = Registry().with_resource("", Resource.opaque(document)).resolver()
        self._schemas: dict[tuple[str, int], dict[str, Json]] = {}
        self.budget = DocumentBudget()
        self._merges = Merges(lambda steps: self.budget.spend(steps, self._merging))
        self._merging = ""

    def follow(self, node: Json, where: str) -> Mapping[str, Json]:
        """The object itself, or the one its reference points to. Raises ApiDocumentError with the place."""
        for _ in range(_ALIASES):
            self.budget.spend(1, where)
            if not isinstance(node, Mapping):
                raise ApiDocumentError(f"{where}: expected an object, found {_kind(node)}")
            if not isinstance(node.get("$ref"), str):
                return node
            node = self._lookup(node["$ref"], where)
        raise ApiDocumentError(f"{where}: the reference leads back to itself")

    def schema(self, node: Json, where: str, depth: int = 0) -> dict[str, Json]:
        """A schema with its references resolved and OpenAPI 3.0 keywords translated to JSON Schema.

        Where a document has a null, as YAML has by an empty place, it says nothing about the value.
        """
        if node is None or isinstance(node, bool):
            return {"not": {}} if node is False else {}
        if not isinstance(node, Mapping):
            raise ApiDocumentError(f"{where}: expected a schema, found {_kind(node)}")
        result = self._plain(node, where, depth)
        reference = node.get("$ref")
        if isinstance(reference, str):
            target = self._referred(reference, where, depth)
            result = self._merged({"allOf": [target], **result}, where) if result else target
        if node.get("nullable") is not True:
            return result
        self.budget.spend(len(result.get("enum", ())), where)
        return _nullable(result)

    def _referred(self, reference: str, where: str, depth: int) -> dict[str, Json]:
        key = (reference, depth)
        if key not in self._schemas:
            try:
                target = self._lookup(reference, where)
            except UnknownTargetError:  # the server knows better
                target = {}
            if depth >= _DEPTH:
                kind = target.get("type") if isinstance(target, Mapping) else None
                self._schemas[key] = _typed(kind)
            else:
                self._schemas[key] = self.schema(target, reference, depth + 1)
        return self._schemas[key]

    def _lookup(self, reference: str, where: str) -> Json:
        self.budget.spend(_LOOK_UP_STEPS, where)
        if len(reference) > _REFERENCE_CHARS:
            raise ApiDocumentError(f"{where}: a reference has more than {_REFERENCE_CHARS:,} characters")
        if not reference.startswith("#"):
            raise UnknownTargetError(f"{where}: {reference!r} refers to another document, which was not read")
        try:  # ValueError, TypeError: a list index that is not a number, an item of a scalar
            return self._resolver.lookup(reference).contents
        except (Unresolvable, LookupError, ValueError, TypeError) as error:
            reason = f"{reference!r} refers to something the document does not have"
            raise UnknownTargetError(f"{where}: {reason}") from error

    def _plain(self, node: Mapping[str, Json], where: str, depth: int) -> dict[str, Json]:
        result: dict[str, Json] = {}
        self.budget.spend(1 + len(node), where)
        for word, value in node.items():
            if word in _ONE:
                result[word] = self.schema(value, where, depth)
            elif word in _MANY and isinstance(value, list) and value:
                result[word] = [self.schema(each, where, depth) for each in value]
            elif word in _NAMED and isinstance(value, Mapping):
                result[word] = {
                    name: self.schema(each, _place(where, name), depth) for name, each in value.items()
                }
            elif _usable(word, value) and (word != "pattern" or self._compiles(value, where)):
                result[word] = value
        self._drop_foreign_patterns(result, where)
        self._add_branches(result, node, where, depth)
        self.budget.spend(len(result.get("enum", ())), where)
        return self._merged(_possible(_bounded(result | _typed(node.get("type")), node)), where)

    def _add_branches(self, result: dict[str, Json], node: Mapping[str, Json], where: str, depth: int) -> None:
        """Any branch of `oneOf` may fit, the one that a `discriminator` names if there is one.

        That no other fits is not asked for: documents in use have branches that overlap.
        """
        listed, chosen = node.get("oneOf"), node.get("discriminator")
        if not isinstance(listed, list) or not listed:
            return
        branches = [
            self._branch(each, chosen if isinstance(chosen, Mapping) else {}, where, depth) for each in listed
        ]
        if "anyOf" in result:
            result["allOf"] = [*result.get("allOf", ()), {"anyOf": branches}]
        else:
            result["anyOf"] = branches

    def _branch(self, node: Json, discriminator: Mapping[str, Json], where: str, depth: int) -> dict[str, Json]:
        """A branch with the values of the property that choose it, unless it has them itself."""
        schema = self.schema(node, where, depth)
        word, mapping = discriminator.get("propertyName"), discriminator.get("mapping")
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        if not isinstance(word, str) or not isinstance(reference, str):
            return schema
        if schema.get("properties", {}).get(word, {}).keys() & {"const", "enum"}:
            return schema
        name = reference.rpartition("/")[2]
        listed = mapping.items() if isinstance(mapping, Mapping) else ()
        self.budget.spend(len(listed), where)
        values = [value for value, target in listed if target in (reference, name)] or [name]
        chosen: dict[str, Json] = {"properties": {word: {"enum": values}}, "required": [word]}
        return self._merged({"allOf": [schema, chosen]}, where)

    def _merged(self, schema: dict[str, Json], where: str) -> dict[str, Json]:
        self._merging = where
        return _without_read_only(merged(schema, self._merges))

    def _compiles(self, pattern: str, where: str) -> bool:
        """Patterns are ECMAScript; those that RE2 cannot compile are left to the server."""
        machine = compiled(pattern)
        self.budget.spend(_PATTERN_STEPS + (machine.size if machine else 0), where)
        return machine is not None

    def _drop_foreign_patterns(self, schema: dict[str, Json], where: str) -> None:
        """Without one of the patterns it is unknown which properties are additional."""
        patterns = schema.get("patternProperties", {})
        kept = {pattern: each for pattern, each in patterns.items() if self._compiles(pattern, where)}
        if len(kept) < len(patterns):
            schema["patternProperties"] = kept
            schema.pop("additionalProperties", None)


def _usable(word: str, value: Any) -> bool:
    """Whether it is a JSON Schema keyword with a valid value; all others are dropped."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and is_in_range(value)
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
        return isinstance(value, str)
    return word in {"const", "default"} or (word == "enum" and isinstance(value, list))


def _place(where: str, name: str) -> str:
    return f"{where}/{name[:_PLACE_CHARS]}" if len(where) < _PLACE_CHARS else where


def _typed(kind: Json) -> dict[str, Json]:
    kinds = kind if isinstance(kind, list) else [kind]
    if not kinds or not all(isinstance(each, str) and each in _TYPES for each in kinds):
        return {}
    return {"type": list(dict.fromkeys(kind)) if isinstance(kind, list) else kind}


def _bounded(schema: dict[str, Json], node: Mapping[str, Json]) -> dict[str, Json]:
    """OpenAPI 3.0 has `exclusiveMinimum: true` next to the bound; in JSON Schema it is the bound."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if node.get(exclusive) is True and bound in schema:
            schema[exclusive] = schema.pop(bound)
    return schema


def _possible(schema: dict[str, Json]) -> dict[str, Json]:
    """Some documents write the choices of another type than they declare: 1 for a text, those of its items for a
    list. They are converted, or left to the server.
    """
    choices, kind = schema.get("enum", ()), schema.get("type")
    kinds: list[Json] = kind if isinstance(kind, list) else [kind]
    named = [each for each in choices if each is not None]
    if not named or kind is None or any(_is_of(kinds, each) for each in named):
        return schema
    converted = [_as_text(each) if "string" in kinds else _from_text(each) for each in choices]
    schema["enum"] = converted
    if not any(_is_of(kinds, each) for each in converted):
        del schema["enum"]
    return schema


def _is_of(kinds: list[Json], value: Json) -> bool:
    """Whether a value other than null is of one of these types."""
    return value is not None and any(Draft202012Validator.TYPE_CHECKER.is_type(value, kind) for kind in kinds)


def _as_text(value: Json) -> Json:
    return to_json_text(value).decode() if isinstance(value, bool | int | float) else value


def _from_text(value: Json) -> Json:
    try:
        return decode_json(value.encode(), max_values=1, max_depth=0) if isinstance(value, str) else value
    except JsonError:
        return value


def _without_read_only(schema: dict[str, Json]) -> dict[str, Json]:
    """Drop read-only fields from `required`: they are required of responses only."""
    fields, required = schema.get("properties", {}), schema.get("required", ())
    needed = [name for name in required if fields.get(name, {}).get("readOnly") is not True]
    return schema if len(needed) == len(required) else {**schema, "required": needed}


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
