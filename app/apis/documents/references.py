"""A document as plain JSON values, and its references: schemas become JSON Schema 2020-12 without references.

JSON or YAML is decoded by YAML 1.2's core schema, so that dates and `yes` stay text. `allOf` is merged into one
schema, whose fields can be shown and passed as arguments. A budget limits the work that one document may cause:
a small one can refer to its parts so that they unfold endlessly.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

from app.apis.documents.schemas import compiled
from app.base.errors import ApiDocumentError
from app.base.untrusted import JsonError, check_number, decode_json, is_in_range
from app.base.values import Json

_STEPS = 3_000_000  # of about a microsecond; a document of 14 MB and 1,100 operations takes half of them
_CHARS_PER_STEP = 64

_NODES = 1_000_000  # a runner's event loop waits while it decodes them; aliases let a small text hold many
_DEPTH = 200

_ABOUT: Final = {"description", "title", "default", "deprecated", "readOnly", "writeOnly"}
_FREE: Final = _ABOUT | {"properties", "required", "additionalProperties"}
_Spend = Callable[[int], None]

_NESTED = 8  # of nested references; below this a schema is reduced to its type
_ALIASES = 20  # references that point to another reference
_REFERENCE_CHARS = 2_000
_LOOK_UP_STEPS = 10
_PATTERN_STEPS = 30
_PLACE_CHARS = 500  # of the path to a place, in messages
_TYPES = {"null", "boolean", "object", "array", "number", "integer", "string"}
_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
_TEXTS = {"description", "title", "format", "contentEncoding", "contentMediaType", "pattern"}
_FLAGS = {"uniqueItems", "readOnly", "writeOnly", "deprecated"}
_ONE = {"items", "additionalProperties", "not", "contains", "propertyNames"}
_MANY = {"allOf", "anyOf", "prefixItems"}
_NAMED = {"properties", "patternProperties"}


class DocumentSizeError(ApiDocumentError):
    """The whole document takes too much."""


class DocumentBudget:
    """Counts what parsing one document costs: the members of schemas, each time they are resolved, and texts."""

    def __init__(self) -> None:
        self._left = _STEPS

    def spend(self, steps: int, where: str) -> None:
        """Raises DocumentSizeError with the place where the document went too far."""
        self._left -= steps
        if self._left < 0:
            raise DocumentSizeError(
                f"{where}: the document is too large here: its references repeat their targets"
            )

    def spend_text(self, text: str, where: str) -> None:
        self.spend(len(text) // _CHARS_PER_STEP, where)


def read_text(text: str) -> Json:
    """Raises ApiDocumentError with the place of the syntax error."""
    start = text.lstrip("\ufeff \t\r\n")
    if start.startswith("<"):
        raise ApiDocumentError("this is an HTML or XML page; give the address of the OpenAPI document itself")
    if start.startswith(("{", "[")):
        try:
            return decode_json(start.encode(), max_values=_NODES, max_depth=_DEPTH)
        except (JsonError, UnicodeEncodeError) as error:
            raise ApiDocumentError(f"the document is not valid JSON: {error}") from error
    return _yaml(text)


def _yaml(text: str) -> Json:
    try:
        return _Conversion().of(yaml.load(text, _Loader)).value
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ApiDocumentError(f"the document is neither JSON nor YAML: {line}{error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error) or "it is nested too deeply"
        raise ApiDocumentError(f"the document is neither JSON nor YAML: {reason}") from error


def to_json_text(value: Json) -> bytes:
    """JSON, also of integers of more than 64 bits and of half a surrogate pair."""
    try:
        return msgspec.json.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return json.dumps(value).encode()


class _Loader(yaml.CSafeLoader):
    """Loads YAML 1.2's core types only, by libyaml, and merges (`<<`) of limited size."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        pairs = len(node.value)
        super().flatten_mapping(node)
        self._merged += max(0, len(node.value) - pairs)
        if self._merged > _NODES:
            raise _endless()


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


class _Plain(msgspec.Struct, frozen=True):
    """A YAML value as JSON. The targets of aliases are shared, but `nodes` and `depth` count each time."""

    value: Json
    nodes: int = 1
    depth: int = 0


class _Conversion:
    """Converts what YAML has and JSON lacks: keys that are not text, and aliases."""

    def __init__(self) -> None:
        self._known: dict[int, _Plain] = {}  # by identity

    def of(self, value: Any, level: int = 0) -> _Plain:
        if level > _DEPTH:  # perhaps a part of itself
            raise _endless()
        if isinstance(value, dict | list):
            if id(value) not in self._known:
                self._known[id(value)] = self._container(value, level)
            return self._known[id(value)]
        if isinstance(value, int | float):
            check_number(value)
        elif value is not None and not isinstance(value, str):
            raise ApiDocumentError(f"the document holds a {type(value).__name__}, which JSON lacks")
        return _Plain(value)

    def _container(self, value: dict[Any, Any] | list[Any], level: int) -> _Plain:
        parts = [self.of(each, level + 1) for each in (value.values() if isinstance(value, dict) else value)]
        nodes, depth = 1 + sum(each.nodes for each in parts), 1 + max((each.depth for each in parts), default=0)
        if nodes > _NODES or depth > _DEPTH:
            raise _endless()
        plain: Json = [each.value for each in parts]
        if isinstance(value, dict):
            plain = dict(zip(map(_key, value), plain, strict=True))
        return _Plain(plain, nodes, depth)


def _endless() -> ApiDocumentError:
    return ApiDocumentError("the document is too large: its aliases repeat one another without end")


def _key(name: Any) -> str:
    if isinstance(name, bool):
        return str(name).lower()
    return "null" if name is None else str(name)


class Merges:
    """The merges of one document. `spend` is called with the number of members to be compared or copied.

    Two fields that share a name are merged once: schemas share parts, and their merges would unfold without bound.
    """

    def __init__(self, spend: _Spend) -> None:
        self.spend = spend
        self._fields: dict[tuple[int, int], tuple[dict[str, Json], dict[str, Json], dict[str, Json]]] = {}

    def field(self, one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
        key = (id(one), id(other))
        if key not in self._fields:  # kept with its parts, so that no other part gets the identity of one
            self._fields[key] = (one, other, merged({"allOf": [one, other]}, self))
        return self._fields[key][2]


def merged(schema: dict[str, Json], merges: Merges | None = None) -> dict[str, Json]:
    """The schema with its allOf merged in; members that cannot be merged stay in allOf, to be validated.

    >>> merged({"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["a"], "minProperties": 2}]})
    {'type': 'object', 'properties': {'a': {}}, 'required': ['a'], 'minProperties': 2}
    """
    members = schema.get("allOf")
    if not members:
        return schema
    own = {word: value for word, value in schema.items() if word != "allOf"}
    union = _Union(merges or Merges(lambda _: None))
    for member in [*members, own]:
        union.add(member)
    return union.schema(closed=len(members) == 1 and "properties" not in own)


class _Union:
    """The merged schema so far, and the members that do not fit it."""

    def __init__(self, merges: Merges) -> None:
        self._merges = merges
        self._spend = merges.spend
        self._result: dict[str, Json] = {}
        self._fields: dict[str, Json] = {}
        self._required: dict[str, None] = {}
        self._left: list[dict[str, Json]] = []

    def add(self, member: dict[str, Json]) -> None:
        self._spend(1 + len(member))
        if self._fits(member):
            self._take(member)
        else:
            self._take({word: member[word] for word in ("properties", "required") if word in member})
            self._left.append(
                {word: value for word, value in member.items() if word not in ("properties", "required")}
            )

    def schema(self, *, closed: bool) -> dict[str, Json]:
        result, left = self._result, self._left
        if "required" in result:
            result["required"] = list(self._required)
        if not closed:  # each member forbids the fields of the others
            result.pop("additionalProperties", None)
            left = [
                {word: value for word, value in each.items() if word != "additionalProperties"} for each in left
            ]
        return {**result, "allOf": [each for each in left if each]} if any(left) else result

    def _fits(self, member: dict[str, Json]) -> bool:
        shared = self._result.keys() & member.keys() - _FREE
        return all(self._same(self._result[word], member[word]) for word in shared)

    def _same(self, one: Json, other: Json) -> bool:
        """Equality, whose steps are counted: resolved schemas share parts, and unfold when compared."""
        if one is other:
            return True
        self._spend(1)
        if isinstance(one, dict) and isinstance(other, dict):
            return len(one) == len(other) and all(
                key in other and self._same(value, other[key]) for key, value in one.items()
            )
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(self._same, one, other))
        return bool(one == other)

    def _take(self, member: dict[str, Json]) -> None:
        for word, value in member.items():
            if word == "properties":
                self._result[word] = self._fields
                self._spend(3 * len(value))
                for name, field in value.items():
                    known = self._fields.get(name)
                    self._fields[name] = field if known is None else self._merges.field(known, field)
            elif word == "required":
                self._result[word] = value
                self._spend(len(value))
                self._required.update(dict.fromkeys(value))
            else:
                self._result[word] = value


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
                raise ApiDocumentError(f"{where}: expected an object, found {_references_kind(node)}")
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
            raise ApiDocumentError(f"{where}: expected a schema, found {_references_kind(node)}")
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
            if depth >= _NESTED:
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


def _references_kind(node: Json) -> str:
    return "nothing" if node is None else f"a {type(node).__name__}"
