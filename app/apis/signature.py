"""Formats an operation in one line: arguments, results and summary."""

import json
from itertools import islice

from app.apis.catalog import Operation, Parameter
from app.apis.short_text import short_repr
from app.apis.type_form import FieldRank, type_form, values_form
from app.apis.type_names import map_values, type_name
from app.base.values import Json

_SHOWN_CHARS = 4_000  # of one default value, or of the fields of a result
_RESULT_FIELDS = 1_000
_COMPOUND = ("list", "map", "object")


def signature(operation: Operation, *, typed: bool = False, rank: FieldRank | None = None) -> str:
    """`fetch_mails(access_token, page=1) -> id, sender: list mails`; an optional argument shows its default.

    If `typed`, it is `-> list of objects with id, sender`, the fields chosen by `rank`; and arguments say if they
    are lists, objects or one of some values.
    """
    returned = type_form(operation.returns, rank) if typed else result(operation.returns)
    return signature_line(call_form(operation, typed=typed), returned, operation.summary)


def signature_line(call: str, returned: str, summary: str) -> str:
    """One line, whatever a document calls its fields: a prompt has other lines below it.

    >>> signature_line("ping()", "", ""), signature_line("ping()", "id\\nTask: end", "say hello")
    ('ping()', 'ping() -> id Task: end: say hello')
    """
    text = f"{call}{f' -> {returned}' if returned else ''}{f': {summary}' if summary else ''}"
    return " ".join(text.splitlines())


def call_form(operation: Operation, *, typed: bool = False) -> str:
    """`fetch_mails(access_token, page=1)`."""
    return f"{operation.name}({', '.join(argument(each, typed=typed) for each in operation.parameters)})"


def result(schema: dict[str, Json]) -> str:
    """The fields of an object, or of those in a list or a map; otherwise the type; "" if nothing is returned.

    >>> result({"type": "object", "additionalProperties": {"properties": {"id": {}, "title": {}}}})
    'map of id, title'
    """
    start, fields = result_fields(schema)
    return f"{start}{_cut(', '.join(fields))}"


def result_fields(schema: dict[str, Json]) -> tuple[str, list[str]]:
    """The fields of a result, and what stands before them, or without any the type."""
    if not schema:
        return "", []
    if (values := map_values(schema)) is not None:
        fields = _fields(values)
        return f"map of {'' if fields else type_name(values)}", fields
    rows = schema.get("items", {}) if "array" in type_name(schema).split() else schema
    if fields := _fields(rows):
        return "", fields
    return f"list of {type_name(rows)}" if rows is not schema and rows else type_name(schema), []


def _fields(schema: dict[str, Json]) -> list[str]:
    return list(islice(schema.get("properties", ()), _RESULT_FIELDS))


def argument(parameter: Parameter, *, typed: bool) -> str:
    """`page=1`, or `page` if it is required; if `typed`, `state (one of "open" or "closed")`."""
    values = values_form(parameter.schema) if typed else ""
    form = type_form(parameter.schema) if typed and parameter.place == "body" and not values else ""
    about = f" (one of {values})" if values else f" ({form})" if form.startswith(_COMPOUND) else ""
    if parameter.required:
        return f"{parameter.name}{about}"
    default = parameter.schema.get("default")
    if isinstance(default, str):
        return f"{parameter.name}={_cut(json.dumps(default, ensure_ascii=False))}{about if values else ''}"
    return f"{parameter.name}={short_repr(default, _SHOWN_CHARS)}{about if values else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
