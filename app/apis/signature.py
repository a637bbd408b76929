"""Formats an operation in one line: arguments, results and summary."""

import json

from app.apis.catalog import Operation, Parameter
from app.records import Json


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
        return ", ".join(fields)
    return f"list of {type_name(rows)}" if rows is not schema and rows else type_name(schema)


def type_name(schema: dict[str, Json]) -> str:
    """The JSON Schema type, alternatives joined with `or`.

    >>> type_name({"anyOf": [{"type": "string"}, {"type": "null"}]})
    'string or null'
    """
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind:
        return str(kind)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(type_name(choice) for choice in choices))
    if "properties" in schema:
        return "object"
    return "array" if "items" in schema else "any"


def _argument(parameter: Parameter) -> str:
    if parameter.required:
        return parameter.name
    default = parameter.schema.get("default")
    shown = json.dumps(default, ensure_ascii=False) if isinstance(default, str) else repr(default)
    return f"{parameter.name}={shown}"
