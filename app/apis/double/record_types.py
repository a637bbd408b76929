"""What real answers show: the form of each field, and the kinds of records that no document declares. Pure.

Nothing personal is kept, and no secret: of a field with such a name only the form stays, and a text of its own
is kept only if several records share it. An API whose users define what a record is says of it only that it is
an object: each place of such a list of which there are samples becomes a list of its own, with the fields that
were seen there.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

import msgspec

from app.apis.double import texts
from app.apis.double.documents import Described
from app.apis.double.shapes import (
    KEYS,
    Schema,
    Shape,
    fields_of,
    flat,
    inferred,
    is_free,
    item_shape,
    list_shape,
    noun_of,
    type_name,
    value_at,
)
from app.apis.naming import plain, split_words
from app.base.secrets import is_telling
from app.base.values import Json

_SHARED: Final = 2  # records that have the same text, for it to be kept
_CHARS: Final = 40  # of a text that is kept
_WORDS: Final = 3  # of such a text
_VALUES: Final = 20  # of one field that are kept
_ROLES: Final = (
    "owner", "author", "creator", "assignee", "reviewer", "reporter", "manager", "member", "requester", "approver",
)  # fmt: skip
_PERSON: Final = re.compile(rf"{'|'.join(_ROLES)}|[a-z]+edby|assignedto")
_PERSONAL: Final = re.compile(
    r"e_?mail|phone|mobile|fax|address|street|postal|zip|birth|(^|_)dob(_|$)|ssn|passport|iban|(^|_)tax|salary|gender"
    r"|(^|_)ip(_|$)|(credit|debit|bank|payment|gift|id)_?card|card_?(number|holder|no)"
    r"|(first|last|full|user|display|given|family|sur|middle|maiden|legal|real|nick|screen)_?name|^name$|(^|_)nick"
    r"|login|person|contact|latitude|longitude|customer|client|patient|recipient|sender|employee|guest|user"
    rf"|account|company|organi[sz]ation|_by$|edby$|_to$|assignedto|{'|'.join(_ROLES)}"
)
_FORMS: Final = (
    ("uuid", re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)),
    ("date-time", re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d.*")),
    ("date", re.compile(r"\d{4}-\d\d-\d\d")),
    ("email", re.compile(r"[^@\s]+@[^@\s]+\.\w+")),
    ("uri", re.compile(r"https?://\S+")),
)

IsSecret = Callable[[str], bool]
Path: TypeAlias = tuple[str, ...]
"""Its segments, each parameter as `{}`."""
Scope: TypeAlias = tuple[str, ...]
"""The keys in the path of a list."""
Rows: TypeAlias = list[dict[str, Json]]
_Samples: TypeAlias = Mapping[str, Mapping[tuple[tuple[str, str], ...], Json]]
"""By operation and place."""
_GENERIC: Final = {"record", "item", "row", "document", "doc", "entry", "object", "entity", "element", "content"}
"""What a record of any kind is called."""
NOT_NAMES: Final = re.compile(r"api|rest|v\d+(\.\d+)*|json", re.IGNORECASE)
_NAMED_KIND: Final = re.compile(r"[a-z]{2,20}([-_ ]?[a-z]{2,20}){0,2}", re.IGNORECASE)
_SERVER_SET: Final = re.compile(
    r"(created|updated|modified|changed|inserted|lastmodified|lastupdated)(at|on|date|time|timestamp|by)?|schema|rev"
)
_KEYS: Final = (["id"], ["ids"], ["uuid"], ["guid"], ["key"], ["ref"])
_CHOICES: Final = 12
_TYPED: Final = 24  # places of a list that become one of their own


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one field: `values` are those that records share, `code` a text of its form, made up."""

    share: float  # of the records that have it
    null: float = 0.0  # of those, the share without a value
    form: str = ""  # a format such as `uuid`
    values: tuple[Json, ...] = ()
    code: str = ""
    low: float | None = None  # of numbers
    high: float | None = None


def names_person(noun: str) -> bool:
    """Whether a field that is called so, its words in one, is about somebody in a role.

    >>> [names_person(each) for each in ("assignee", "createdby", "assignedto", "project", "relatedto")]
    [True, True, True, False, False]
    """
    return _PERSON.fullmatch(noun) is not None


def is_private(name: str) -> bool:
    """Whether a field of this name may hold what is of somebody, or a secret."""
    return is_telling(name) or _PERSONAL.search("_".join(split_words(name))) is not None


def seen_of(name: str, values: Sequence[Json], rows: int, is_secret: IsSecret) -> Seen:
    """What the values of a field, in so many records, show."""
    known = [each for each in values if each is not None]
    share, null = len(values) / rows, 1 - len(known) / len(values)
    numbers = [float(each) for each in known if isinstance(each, int | float) and not isinstance(each, bool)]
    if is_private(name):
        return Seen(share=share, null=null, form=_form(known))
    if numbers and len(numbers) == len(known):
        return Seen(share=share, null=null, low=min(numbers), high=max(numbers))
    said = [each for each in known if isinstance(each, str) and not is_secret(each)]
    counted = Counter(said)
    shared = [each for each, times in counted.items() if times >= _SHARED and _is_word(each)]
    plain_values = all(isinstance(each, str | bool) for each in known)
    flags = [each for each in dict.fromkeys(known) if isinstance(each, bool)] if plain_values else []
    code = next((each for each in said if _is_code(each)), "")
    return Seen(
        share=share,
        null=null,
        form=_form(known),
        values=tuple([*flags, *shared][:_VALUES]) if flags or len(counted) * _SHARED <= len(said) else (),
        code=texts.alike(code, Random(len(code)), words=True) if code else "",
    )


def text_like(seen: Seen, name: str, rng: Random) -> str | None:
    """A text of the form that was seen, or of what the name says."""
    if seen.form:
        return texts.text_of_format(seen.form, rng)
    return texts.alike(seen.code, rng) if seen.code else texts.text_of_name(name, rng)


def _form(values: Sequence[Json]) -> str:
    said = [each for each in values if isinstance(each, str)]
    if not said:
        return ""
    return next((form for form, pattern in _FORMS if all(map(pattern.fullmatch, said))), "")


def _is_word(text: str) -> bool:
    """Whether it may be a state or a label: short, and no address or number of somebody."""
    short = 0 < len(text) <= _CHARS and len(text.split()) <= _WORDS
    return short and not any(pattern.fullmatch(text) for _, pattern in _FORMS) and "@" not in text


def _is_code(text: str) -> bool:
    is_other = any(each in text for each in (" ", "://", "@"))
    return len(text) <= _CHARS and any(map(str.isdigit, text)) and not is_other


class _Kind(msgspec.Struct, frozen=True):
    """What records have. `codes` are texts of the form of their keys, by field."""

    fields: dict[str, Schema]
    codes: dict[str, list[Json]] = {}


def sample_key(operation: str, scope: Mapping[str, Json]) -> str:
    """The name of a sample of one place, `scope` are the path parameters that name it.

    >>> sample_key("get_records", {"bucket_id": "blog"}), sample_key("get_buckets", {})
    ('get_records?bucket_id=blog', 'get_buckets')
    """
    return f"{operation}?{urlencode(scope)}" if scope else operation


def place_of(sample: str) -> tuple[str, dict[str, str]]:
    """The operation of a sample, and the path parameters that name its place.

    >>> place_of("get_records?bucket_id=blog")
    ('get_records', {'bucket_id': 'blog'})
    """
    operation, _, scope = sample.partition("?")
    return operation, dict(parse_qsl(scope))


def is_word(key: str) -> bool:
    """Whether a key reads as a name that somebody chose: `articles`, not `tbl7Qx` or `9f3a`.

    >>> [is_word(each) for each in ("articles", "line-items", "tbl7Qx", "9f3a", "user@home", "xkcdq")]
    [True, True, False, False, False, False]
    """
    return _NAMED_KIND.fullmatch(key) is not None and all(
        re.search("[aeiouy]", each) is not None and re.search("[^aeiouy]{5}", each) is None
        for each in split_words(key)
    )


def is_generic(path: Path) -> bool:
    """Whether the path of a list does not say what its records are."""
    named = [each for each in path if each != "{}" and not NOT_NAMES.fullmatch(each)]
    return "{}" in path and (not named or noun_of(split_words(named[-1])[-1:]) in _GENERIC or path[-1] == "{}")


def with_types(described: Sequence[Described], samples: Mapping[str, Json]) -> list[Described]:
    """The operations with the fields that samples show of free records, and, `pinned` to its keys, each operation
    once more for each place that has a type of its own.
    """
    by_operation: dict[str, dict[tuple[tuple[str, str], ...], Json]] = {}
    for name, value in samples.items():
        operation, given = place_of(name)
        by_operation.setdefault(operation, {})[tuple(given.items())] = value
    paths = {each.path for each in described}
    found = {each.operation.name: each for each in described}
    typed: list[Described] = []
    for listing in described:
        path = listing.path
        if listing.operation.method != "GET" or (path[-1:] == ("{}",) and (*path, "{}") not in paths):
            continue
        own = [each for each in described if each.path in (path, (*path, "{}"))]
        rows = _rows(listing, own, by_operation)
        if not rows or _shape(listing, by_operation) is None:
            continue
        if is_generic(path):
            for scope, seen in list(rows.items())[:_TYPED]:
                if len(scope) == len(listing.parameters) and not any("/" in each for each in scope):
                    alike = [row for at, other in rows.items() if at[-1] == scope[-1] for row in other]
                    kind = _kind_of(seen, alike)
                    typed += [_pinned(each, listing, scope, kind, by_operation) for each in own]
        else:
            every = [row for seen in rows.values() for row in seen]
            for each in own:
                found[each.operation.name] = _filled(each, _kind_of(every, every), [_noun(path)])
    return [*found.values(), *typed]


def _noun(path: Path) -> str:
    return noun_of(split_words(next((each for each in reversed(path) if each != "{}"), "")))


def _shape(listing: Described, samples: _Samples) -> Shape | None:
    """Where a list has its records, if the document does not say what they have."""
    nouns = [_noun(listing.path)]
    shape = list_shape(listing.reply.schema or {}, nouns)
    if shape is not None:
        return shape if is_free(shape.item) else None
    shown = next(iter(samples.get(listing.operation.name, {}).values()), None)
    return None if listing.reply.schema else list_shape(inferred(shown), nouns)


def _rows(listing: Described, own: Iterable[Described], samples: _Samples) -> dict[Scope, Rows]:
    """The records that samples show, by the keys in the path of the list."""
    found: dict[Scope, Rows] = {}
    shape = _shape(listing, samples)
    for each in own if shape is not None else ():
        of_place = samples.get(each.operation.name, {}) if each.operation.method == "GET" else {}
        for scope, value in of_place.items():
            given = dict(scope)
            keys = tuple(given[name] for name in each.parameters[: len(listing.parameters)] if name in given)
            rows = found.setdefault(keys, [])
            if each is listing and shape is not None:
                listed = value_at(value, shape.keys)
                listed = list(listed.values()) if isinstance(listed, dict) else listed
                rows += [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
            elif (one := item_shape(each.reply.schema or inferred(value), [_noun(listing.path)])) is not None:
                row = value_at(value, one.keys)
                rows += [row] if isinstance(row, dict) else []
    return {keys: rows for keys, rows in found.items() if rows}


def _pinned(each: Described, listing: Described, scope: Scope, kind: _Kind, samples: _Samples) -> Described:
    """An operation at one place."""
    keys, own = iter(scope), list(listing.path)
    path = [next(keys) if part == "{}" else part for part in own]
    if is_word(scope[-1]):  # which says more than `records` behind it
        path = path[: len(own) - own[::-1].index("{}")]
    pinned = dict(zip(each.parameters, scope, strict=False))
    if each.reply.schema is None and each.operation.method == "GET":
        value = samples.get(each.operation.name, {}).get(tuple(pinned.items()))
        if value is not None:
            each = msgspec.structs.replace(each, reply=msgspec.structs.replace(each.reply, schema=inferred(value)))
    return msgspec.structs.replace(
        _filled(each, kind, [_noun(listing.path)]),
        path=(*path, *each.path[len(own) :]),
        parameters=each.parameters[len(scope) :],
        pinned=pinned,
    )


def _filled(each: Described, kind: _Kind, nouns: Sequence[str]) -> Described:
    """An operation whose answer and body have the fields of a kind."""
    fields = kind.fields
    reply, body, examples = each.reply, each.body, {**each.examples, **kind.codes}
    if reply.schema is not None:
        shape = list_shape(reply.schema, nouns) or item_shape(reply.schema, nouns)
        if shape is not None and is_free(shape.item):
            item = {**shape.item, "type": "object", "properties": {**fields_of(shape.item), **fields}}
            reply = msgspec.structs.replace(reply, schema=_placed(reply.schema, shape, item))
    free = body is not None and body.shape is not None and body.shape.holds == "one" and is_free(body.shape.item)
    if body is not None and body.shape is not None and free:
        sent = {name: schema for name, schema in fields.items() if not schema.get("readOnly")}
        properties = {**fields_of(body.shape.item), **sent}
        item = {"type": "object", "properties": properties, "additionalProperties": True}
        shape = msgspec.structs.replace(body.shape, item=item)
        body = msgspec.structs.replace(body, schema=_placed(body.schema, body.shape, item), shape=shape)
    return msgspec.structs.replace(each, reply=reply, body=body, examples=examples, is_free=free or each.is_free)


def _kind_of(rows: Rows, alike: Rows) -> _Kind:
    """What rows have, as far as rows of other places, that are called the same, tell its types."""
    names = {name for row in rows for name in row}
    fields = {name: schema for name, schema in item_of(alike).items() if name in names}
    keys = {name: [row[name] for row in rows if name in row] for name in KEYS if any(name in row for row in rows)}
    codes = {name: seen_of(name, values, len(rows), lambda _: False).code for name, values in keys.items()}
    return _Kind(fields, {name: [code] for name, code in codes.items() if code})


def _placed(schema: Schema, shape: Shape, item: Schema) -> Schema:
    """The schema with the records that the shape finds in it as `item`."""
    schema = flat(schema)
    if shape.keys:
        key, *keys = shape.keys
        inner = _placed(fields_of(schema)[key], msgspec.structs.replace(shape, keys=tuple(keys)), item)
        return {**schema, "properties": {**schema["properties"], key: inner}}
    match shape.holds:
        case "list":
            return {**schema, "items": item}
        case "map":
            return {**schema, "additionalProperties": item}
    return item


def item_of(rows: Rows) -> dict[str, Schema]:
    """The fields that rows have, of the types that they have everywhere: choices where few words are repeated."""
    found: dict[str, Schema] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        schema = _schema_of(name, [each for each in values if each is not None], len(rows))
        if schema is None:
            continue
        if None in values:
            schema["type"] = [schema["type"], "null"]
            schema |= {"enum": [*schema["enum"], None]} if "enum" in schema else {}
        if _SERVER_SET.fullmatch(plain(name)):
            schema["readOnly"] = True
        found[name] = schema
    return found


def _schema_of(name: str, known: list[Json], rows: int) -> Schema | None:
    """None for values of several types, or without any."""
    kinds = {type_name(each) for each in known}
    if kinds == {"integer", "number"}:
        return {"type": "number"}
    if len(kinds) != 1:
        return None
    [kind] = kinds
    if kind in ("array", "object"):
        return inferred(known[0] if kind == "object" else [one for each in known for one in each])
    if kind == "integer" and _SERVER_SET.fullmatch(plain(name)):
        return {"type": kind, "format": "timestamp"}
    if kind != "string":
        return {"type": kind}
    seen: Seen = seen_of(name, known, rows, lambda _: False)
    choices = [each for each in seen.values if isinstance(each, str)]
    if 1 < len(choices) <= _CHOICES and not seen.form and split_words(name)[-1:] not in _KEYS:
        return {"type": kind, "enum": choices}
    return {"type": kind, **({"format": seen.form} if seen.form else {})}
