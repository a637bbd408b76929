"""The form of a value in short, in words that nobody takes for code: a list, an object and its fields. Pure."""

import json
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeAlias

from app.apis.short_text import short_repr
from app.apis.type_names import map_values, type_name
from app.base.values import Json

_FIELDS = 8
_INNER_FIELDS = 4
_DEPTH = 2  # of lists and objects within one another
_CHARS = 60  # of a type, a field, or the values of one
_CONSIDERED = 300  # fields of one object
_VALUES = 20  # of an enumeration


FieldRank: TypeAlias = Callable[[str], Any]
"""A key to sort names of fields by, those that are most likely to be needed first."""


def type_form(schema: dict[str, Json], rank: FieldRank | None = None) -> str:
    """ "" if nothing is known. The fields of a list within an object are shown: often those are wanted.

    Of many fields the first by `rank` are shown, or else the first of the document.

    >>> rows = {"type": "array", "items": {"properties": {"id": {}, "state": {"enum": ["on", "off"]}}}}
    >>> type_form(rows), type_form({"type": "integer"}), type_form({"type": "array", "items": {"type": "string"}})
    ('list of objects with id, state ("on" or "off")', 'integer', 'list of string')
    >>> type_form({"properties": {"data": rows, "more": {}}})
    'object with data (list of objects with id, state ("on" or "off")), more'
    >>> type_form({"type": "object", "additionalProperties": rows["items"]})
    'map to objects with id, state ("on" or "off")'
    """
    return _form(schema, _FIELDS, _DEPTH, rank) if schema else ""


def values_form(schema: Json) -> str:
    """The values of an enumeration, as many as are short; "" for other schemas.

    >>> values_form({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}), values_form({"type": "string"})
    ('"a" or "b"', '')
    """
    choices = (schema, *islice(schema.get("anyOf", ()), _VALUES)) if isinstance(schema, dict) else ()
    lists = (each["enum"] for each in choices if isinstance(each, dict) and isinstance(each.get("enum"), list))
    values: list[Json] = next(lists, [])
    shown: list[str] = []
    left = _CHARS
    for each in islice(values, _VALUES):
        text = json.dumps(each, ensure_ascii=False) if isinstance(each, str) else short_repr(each, _CHARS)
        left -= len(text)
        if left < 0:
            break
        shown.append(text)
    more = ["..."] if len(shown) < len(values) else []
    return " or ".join([*shown, *more]) if shown else ""


def _form(
    schema: dict[str, Json], limit: int, depth: int, rank: FieldRank | None, *, several: bool = False
) -> str:
    """`several`: of which there are some, in a list or a map."""
    if "array" in type_name(schema).split():
        items = schema.get("items")
        if not (isinstance(items, dict) and items and depth):
            return "list"
        return f"list of {_form(items, limit, depth, rank, several=True)}"
    if depth and (values := map_values(schema)) is not None:
        return f"map to {_form(values, limit, depth, rank, several=True)}"
    fields = schema.get("properties")
    if not fields or not depth:
        return values_form(schema) or type_name(schema)[:_CHARS]
    shown = [_field(name, fields[name], depth, rank) for name in _chosen(fields, limit, rank)]
    more = ["..."] if len(fields) > limit else []
    return f"{'objects' if several else 'object'} with {', '.join([*shown, *more])}"


def _chosen(fields: dict[str, Json], limit: int, rank: FieldRank | None) -> list[str]:
    """In the order of the document."""
    if rank is None or len(fields) <= limit:
        return list(islice(fields, limit))
    first = set(sorted(islice(fields, _CONSIDERED), key=rank)[:limit])
    return [name for name in fields if name in first]


def _field(name: str, schema: Json, depth: int, rank: FieldRank | None) -> str:
    if not isinstance(schema, dict):
        return name[:_CHARS]
    if "array" in type_name(schema).split() or map_values(schema) is not None:
        return f"{name[:_CHARS]} ({_form(schema, _INNER_FIELDS, depth - 1, rank)})"
    values = values_form(schema)
    return f"{name[:_CHARS]} ({values})" if values else name[:_CHARS]
