"""The form of a value in short: a list, an object and its fields, or a type. Pure."""

from itertools import islice

from app.apis.type_names import map_values, type_name
from app.records import Json

_FIELDS = 8
_INNER_FIELDS = 4
_DEPTH = 2  # of lists and objects within one another
_TITLE_CHARS = 40
_CHARS = 60  # of a type or a field


def type_form(schema: dict[str, Json]) -> str:
    """ "" if nothing is known. The fields of a list within an object are shown: often those are wanted.

    >>> rows = {"type": "array", "items": {"title": "Flow", "properties": {"id": {}, "name": {}}}}
    >>> type_form(rows), type_form({"properties": {"data": rows, "more": {}}}), type_form({"type": "integer"})
    ('list[Flow{id, name}]', '{data: list[Flow{id, name}], more}', 'integer')
    >>> type_form({"type": "object", "additionalProperties": rows["items"]})
    'dict[string, Flow{id, name}]'
    """
    return _form(schema, _FIELDS, _DEPTH) if schema else ""


def _form(schema: dict[str, Json], limit: int, depth: int) -> str:
    if "array" in type_name(schema).split():
        items = schema.get("items")
        return f"list[{_form(items, limit, depth)}]" if isinstance(items, dict) and items and depth else "list"
    if depth and (values := map_values(schema)) is not None:
        return f"dict[string, {_form(values, limit, depth)}]"
    fields = schema.get("properties")
    if not fields or not depth:
        return type_name(schema)[:_CHARS]
    shown = [_field(name, each, depth) for name, each in islice(fields.items(), limit)]
    more = ["..."] if len(fields) > limit else []
    return f"{_title(schema)}{{{', '.join([*shown, *more])}}}"


def _field(name: str, schema: Json, depth: int) -> str:
    if isinstance(schema, dict) and ("array" in type_name(schema).split() or map_values(schema) is not None):
        return f"{name[:_CHARS]}: {_form(schema, _INNER_FIELDS, depth - 1)}"
    return name[:_CHARS]


def _title(schema: dict[str, Json]) -> str:
    """Written as the name of a class, which generated titles are."""
    title = schema.get("title")
    return title if isinstance(title, str) and title.isidentifier() and len(title) <= _TITLE_CHARS else ""
