"""Where the records are in the values that schemas describe: lists, envelopes, maps by id, wrapped items. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from app.apis.documents.schemas import Check, TooComplexError, start_counting
from app.apis.naming import plain, singular, split_words
from app.base.values import Json

Schema = dict[str, Json]

KEYS: Final = ("id", "uuid", "guid", "_id", "uid", "key", "number", "slug", "code", "name", "username", "login")
"""Names of fields that tell records apart, the usual first."""
_WRAPPERS: Final = ("data", "result", "results", "item", "response", "payload", "attributes", "record", "object")
_LISTS: Final = ("items", "results", "data", "records", "entries", "rows", "objects", "value", "values", "list")
_OTHER_LISTS: Final = frozenset({"links", "included", "errors", "warnings", "facets", "messages"})
_ABOUT_PAGES: Final = re.compile(
    r"total|count|page|next|prev|first|last|limit|offset|size|more|cursor|meta|link|status|success|message|error"
    r"|object|kind|etag|self|href|url|took|code|ok|version|start|end|skip|took|time|request|warning"
)
_DEPTH: Final = 3  # of envelopes in envelopes
_ALTERNATIVES: Final = 8
_SAMPLED: Final = 20  # items of a list from which a schema is inferred


class Shape(msgspec.Struct, frozen=True):
    """Where an answer or a body has its records: under `keys`, one after the other."""

    keys: tuple[str, ...]
    holds: Literal["one", "list", "map"]  # "map": by id
    item: Schema


def flat(schema: Schema) -> Schema:
    """The schema without alternatives: of several the first that describes an object, or else the first.

    A value of it may violate the whole schema; what is made of it is checked.
    """
    for _ in range(_ALTERNATIVES):
        branches = schema.get("anyOf") or schema.get("oneOf")
        parts = schema.get("allOf")
        if branches:
            known = [each for each in branches if each.get("type") != "null"] or branches
            chosen = next((each for each in known if "properties" in each), known[0])
            schema = _joined([_without(schema, "anyOf", "oneOf"), chosen])
        elif parts:
            schema = _joined([_without(schema, "allOf"), *parts])
        else:
            break
    return schema


def kind_of(schema: Schema) -> str:
    """The type of its values; "" if the schema does not say.

    >>> kind_of({"type": ["null", "integer"]}), kind_of({"properties": {}}), kind_of({"enum": ["a", None]})
    ('integer', 'object', 'string')
    """
    given = schema.get("type")
    kinds = [each for each in (given if isinstance(given, list) else [given]) if each not in (None, "null")]
    if kinds:
        return str(kinds[0])
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    known = [each for each in schema.get("enum", [schema.get("const")]) if each is not None]
    return type_name(known[0]) if known else ""


def type_name(value: Json) -> str:
    """
    >>> [type_name(each) for each in (None, True, 1, 0.5, "a", [], {})]
    ['null', 'boolean', 'integer', 'number', 'string', 'array', 'object']
    """
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def fields_of(schema: Schema) -> dict[str, Schema]:
    """The properties of a flat schema."""
    found = schema.get("properties")
    return {name: each for name, each in found.items() if isinstance(each, dict)} if found else {}


def within(schema: Schema) -> dict[str, Schema]:
    """The properties of a flat schema, and after each object those that it has, as `address/city`. Names with a
    slash of their own are left out.

    >>> list(within({"properties": {"a/b": {}, "name": {}, "address": {"properties": {"city": {}, "a/b": {}}}}}))
    ['name', 'address', 'address/city']
    """
    found: dict[str, Schema] = {}
    for name, each in fields_of(schema).items():
        if "/" not in name:
            found[name] = each
            found |= {f"{name}/{own}": of for own, of in fields_of(flat(each)).items() if "/" not in own}
    return found


def root_of(field: str) -> str:
    """The property that a field of `within` is, or is in."""
    return field.partition("/")[0]


def own_name(field: str) -> str:
    """What a field of `within` is called where it is."""
    return field.rpartition("/")[2]


def is_nullable(schema: Schema) -> bool:
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        return True
    branches = schema.get("anyOf") or schema.get("oneOf") or ()
    return None in schema.get("enum", ()) or any("null" in str(each.get("type")) for each in branches)


def list_shape(schema: Schema, nouns: Sequence[str] = (), depth: int = 0) -> Shape | None:
    """Where the list of records is; None if a value of the schema has none, or is one record with a list in it.

    >>> note = {"type": "object", "properties": {"id": {}}}
    >>> list_shape({"properties": {"total": {}, "rows": {"type": "array", "items": note}}}).keys
    ('rows',)
    >>> list_shape({"type": "object", "additionalProperties": note}).holds
    'map'
    """
    schema = flat(schema)
    if kind_of(schema) == "array":
        item = flat(schema.get("items") or {})
        return Shape((), "list", item) if kind_of(item) == "object" else None
    if kind_of(schema) != "object" or depth > _DEPTH:
        return None
    if (each := map_values(schema)) is not None:
        return Shape((), "map", each)
    fields = fields_of(schema)
    inner = {
        name: _inside(flat(each), nouns, depth) for name, each in fields.items() if plain(name) not in _OTHER_LISTS
    }
    found = {name: shape for name, shape in inner.items() if shape is not None}
    chosen = _chosen(found, fields, nouns)
    return None if chosen is None else msgspec.structs.replace(found[chosen], keys=(chosen, *found[chosen].keys))


def item_shape(schema: Schema, nouns: Sequence[str] = ()) -> Shape | None:
    """Where the one record is; None if a value of the schema is no object.

    >>> item_shape({"properties": {"note": {"properties": {"id": {}}}}}, ["note"]).keys
    ('note',)
    """
    schema, keys = flat(schema), list[str]()
    for _ in range(_DEPTH):
        fields = fields_of(schema)
        inside = {
            name: flat(each)
            for name, each in fields.items()
            if (plain(name) in _WRAPPERS or _noun(name) in nouns) and kind_of(flat(each)) == "object"
        }
        if len(inside) != 1:
            break
        [each] = inside.values()
        others = [name for name in fields if name not in inside and not _ABOUT_PAGES.search(plain(name))]
        if is_free(each):  # what stands beside it, as permissions do, are no fields of the record
            others = [name for name in others if kind_of(flat(fields[name])) not in ("object", "array")]
        elif not _is_record(each):
            break
        if others:
            break
        [(name, schema)] = inside.items()
        keys.append(name)
    return Shape(tuple(keys), "one", schema) if kind_of(schema) == "object" else None


def map_values(schema: Schema) -> Schema | None:
    """The objects of a map by id."""
    values = schema.get("additionalProperties")
    patterns = schema.get("patternProperties")
    if not isinstance(values, dict) and isinstance(patterns, dict) and len(patterns) == 1:
        [values] = patterns.values()
    if not isinstance(values, dict) or fields_of(schema):
        return None
    item = flat(values)
    return item if kind_of(item) == "object" else None


def likeness(one: Schema, other: Schema) -> float:
    """The share of the fields of the smaller one that both have, from 0 to 1."""
    first, second = fields_of(one).keys(), fields_of(other).keys()
    smaller = min(len(first), len(second))
    return len(first & second) / smaller if smaller else 0.0


def inferred(value: Json) -> Schema:
    """A schema that the value has, and others like it."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {name: inferred(each) for name, each in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": _joined([inferred(each) for each in value[:_SAMPLED]]) if value else {}}
    return {} if value is None else {"type": type_name(value)}


def is_free(schema: Schema) -> bool:
    """Whether a flat schema of an object leaves open which fields there are."""
    return not fields_of(schema) or schema.get("additionalProperties", False) is not False


def noun_of(words: Sequence[str]) -> str:
    """
    >>> noun_of(["customer", "accounts"])
    'customeraccount'
    """
    return "".join([*words[:-1], singular(words[-1])]) if words else ""


def value_at(value: Json, keys: Sequence[str]) -> Json:
    """What a value has under the keys; None if it has not."""
    for each in keys:
        value = value.get(each) if isinstance(value, Mapping) else None
    return value


def field_in(record: Mapping[str, Json], field: str) -> Json:
    """The value of a field of `within`; None if the record has no such field."""
    return value_at(record, field.split("/"))


def with_value_at(value: Json, keys: Sequence[str], new: Json) -> Json:
    """The value with something else under the keys, if it has them."""
    if not keys:
        return new
    if not isinstance(value, Mapping):
        return value
    return {name: with_value_at(each, keys[1:], new) if name == keys[0] else each for name, each in value.items()}


class Fits:
    """Whether values fit schemas, whose validators are kept as long as this is."""

    def __init__(self) -> None:
        self._checks: dict[int, tuple[Schema, Check]] = {}

    def __call__(self, schema: Schema, value: Json) -> bool:
        """True for what takes too long to check."""
        start_counting()
        try:
            return self._check(schema).accepts(value)
        except TooComplexError:
            return True

    def problem(self, schema: Schema, value: Json) -> tuple[str, str]:
        """Place and message of the worst violation; two empty texts if there is none."""
        start_counting()
        try:
            error = self._check(schema).error(value)
        except TooComplexError:
            return "", "the value is too complex"
        if error is None:
            return "", ""
        missing = re.match(r"'([^']+)' is a required property", error.message)
        place = ".".join([*map(str, error.absolute_path), *(missing.groups() if missing else ())])
        return place, error.message[:200]

    def _check(self, schema: Schema) -> Check:
        if id(schema) not in self._checks:  # kept with the schema, so that its id is no other's
            self._checks[id(schema)] = (schema, Check(schema))
        return self._checks[id(schema)][1]


def _inside(schema: Schema, nouns: Sequence[str], depth: int) -> Shape | None:
    """The list that a field of an envelope is, or has."""
    is_list = kind_of(schema) == "array" or map_values(schema) is not None
    return list_shape(schema, nouns, depth + 1) if is_list or not _is_record(schema) else None


def _chosen(found: Mapping[str, Shape], fields: Mapping[str, Schema], nouns: Sequence[str]) -> str | None:
    """The field of an envelope that has its list."""
    usual = next((name for each in _LISTS for name in found if plain(name) == each), None)
    named = next((name for name in found if _noun(name) in nouns), None)
    if named is not None or usual is not None:
        return named or usual
    rest = [name for name in fields if name not in found and not _ABOUT_PAGES.search(plain(name))]
    lists = [name for name in found if found[name].holds == "list"]
    return next(iter(lists or found), None) if len(lists or found) == 1 and not rest else None


def _noun(name: str) -> str:
    return noun_of(split_words(name))


def _is_record(schema: Schema) -> bool:
    """Whether it is more than an envelope: it has a key, or says little."""
    fields = fields_of(schema)
    return any(name in fields for name in KEYS) or len(fields) > 2


def _joined(parts: Sequence[Schema]) -> Schema:
    """Their words together. Of the same word the last one counts, but for fields, which are all kept."""
    whole: Schema = {}
    for part in parts:
        fields = {**whole.get("properties", {}), **part.get("properties", {})}
        needed = list(dict.fromkeys([*whole.get("required", ()), *part.get("required", ())]))
        whole = {**whole, **part}
        if fields:
            whole["properties"] = fields
        if needed:
            whole["required"] = needed
    return whole


def _without(schema: Schema, *words: str) -> Schema:
    return {word: value for word, value in schema.items() if word not in words}
