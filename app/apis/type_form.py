"""The form of a value in short: a list, an object and its fields, or a type. Pure."""

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeAlias

from app.apis.type_names import map_values, type_name
from app.records import Json

_FIELDS = 8
_INNER_FIELDS = 4
_DEPTH = 2  # of lists and objects within one another
_TITLE_CHARS = 40
_CHARS = 60  # of a type or a field
_CONSIDERED = 300  # fields of one object


FieldRank: TypeAlias = Callable[[str], Any]
"""A key to sort names of fields by, those that are most likely to be needed first."""


def type_form(schema: dict[str, Json], rank: FieldRank | None = None) -> str:
    """ "" if nothing is known. The fields of a list within an object are shown: often those are wanted.

    Of many fields the first by `rank` are shown, or else the first of the document.

    >>> rows = {"type": "array", "items": {"title": "Flow", "properties": {"id": {}, "name": {}}}}
    >>> type_form(rows), type_form({"properties": {"data": rows, "more": {}}}), type_form({"type": "integer"})
    ('list[Flow{id, name}]', '{data: list[Flow{id, name}], more}', 'integer')
    >>> type_form({"type": "object", "additionalProperties": rows["items"]})
    'dict[string, Flow{id, name}]'
    """
    return _form(schema, _FIELDS, _DEPTH, rank) if schema else ""


def _form(schema: dict[str, Json], limit: int, depth: int, rank: FieldRank | None) -> str:
    if "array" in type_name(schema).split():
        items = schema.get("items")
        return (
            f"list[{_form(items, limit, depth, rank)}]" if isinstance(items, dict) and items and depth else "list"
        )
    if depth and (values := map_values(schema)) is not None:
        return f"dict[string, {_form(values, limit, depth, rank)}]"
    fields = schema.get("properties")
    if not fields or not depth:
        return type_name(schema)[:_CHARS]
    shown = [_field(name, fields[name], depth, rank) for name in _chosen(fields, limit, rank)]
    more = ["..."] if len(fields) > limit else []
    return f"{_title(schema)}{{{', '.join([*shown, *more])}}}"


def _chosen(fields: dict[str, Json], limit: int, rank: FieldRank | None) -> list[str]:
    """In the order of the document."""
    if rank is None or len(fields) <= limit:
        return list(islice(fields, limit))
    first = set(sorted(islice(fields, _CONSIDERED), key=rank)[:limit])
    return [name for name in fields if name in first]


def _field(name: str, schema: Json, depth: int, rank: FieldRank | None) -> str:
    if isinstance(schema, dict) and ("array" in type_name(schema).split() or map_values(schema) is not None):
        return f"{name[:_CHARS]}: {_form(schema, _INNER_FIELDS, depth - 1, rank)}"
    return name[:_CHARS]


def _title(schema: dict[str, Json]) -> str:
    """Written as the name of a class, which generated titles are."""
    title = schema.get("title")
    return title if isinstance(title, str) and title.isidentifier() and len(title) <= _TITLE_CHARS else ""
