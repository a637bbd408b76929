"""Formats an operation in one line: arguments, results and summary."""

import json
from itertools import islice

from app.apis.binary_values import is_binary
from app.apis.catalog import Operation, Parameter
from app.apis.short_text import short_repr
from app.records import Json

_SHOWN_CHARS = 4_000  # of one default value, or of the fields of a result
_RESULT_FIELDS = 1_000
_ALTERNATIVES = 100  # that the name of a type is made of


def signature(operation: Operation) -> str:
    """`fetch_mails(access_token, page=1) -> id, sender: list mails`; an optional argument shows its default."""
    line = call_form(operation)
    if given := result(operation.returns):
        line += f" -> {given}"
    return f"{line}: {operation.summary}" if operation.summary else line


def call_form(operation: Operation) -> str:
    """`fetch_mails(access_token, page=1)`."""
    return f"{operation.name}({', '.join(_argument(each) for each in operation.parameters)})"


def result(schema: dict[str, Json]) -> str:
    """The fields of an object, or of the objects of a list; otherwise the type; "" if nothing is returned."""
    if not schema:
        return ""
    rows = schema.get("items", {}) if "array" in type_name(schema).split() else schema
    if fields := rows.get("properties"):
        return _cut(", ".join(islice(fields, _RESULT_FIELDS)))
    return f"list of {type_name(rows)}" if rows is not schema and rows else type_name(schema)


def type_name(schema: dict[str, Json]) -> str:
    """The JSON Schema type, alternatives joined with `or`.

    >>> type_name({"anyOf": [{"type": "string"}, {"type": "null"}]}), type_name({"format": "binary"})
    ('string or null', 'bytes')
    """
    return _Types().of(schema)


class _Types:
    """Names of types, for a limited number of schemas: alternatives that share parts unfold without bound."""

    def __init__(self) -> None:
        self._left = _ALTERNATIVES

    def of(self, schema: dict[str, Json]) -> str:
        self._left -= 1
        kind = schema.get("type")
        if is_binary(schema):
            return "bytes"
        if isinstance(kind, list):
            return " or ".join(kind)
        if kind:
            return str(kind)
        choices = schema.get("anyOf")
        if choices and self._left > 0:
            return " or ".join(dict.fromkeys(self.of(choice) for choice in choices[: self._left]))
        if "properties" in schema:
            return "object"
        return "array" if "items" in schema else "any"


def _argument(parameter: Parameter) -> str:
    if parameter.required:
        return parameter.name
    default = parameter.schema.get("default")
    if isinstance(default, str):
        return f"{parameter.name}={_cut(json.dumps(default, ensure_ascii=False))}"
    return f"{parameter.name}={short_repr(default, _SHOWN_CHARS)}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
