"""What is wrong with a field of a form, in words for people."""

import re
from typing import Any

from msgspec import inspect

_WORDS = (
    (re.compile(r"expected `int`, got"), "enter a whole number"),
    (re.compile(r"expected `float`, got"), "enter a number"),
    (re.compile(r"expected `(?:int|float)` >= ([\d.e+-]+)"), r"must be at least \1"),
    (re.compile(r"expected `(?:int|float)` <= ([\d.e+-]+)"), r"must be at most \1"),
    (re.compile(r"expected `str` of length >= (\d+)"), r"needs at least \1 characters"),
    (re.compile(r"expected `str` of length <= (\d+)"), r"may have at most \1 characters"),
    (re.compile(r"invalid enum value"), "choose one of the list"),
)
_PATTERN = "matching regex"


def readable(message: str, kind: type[Any], field: str) -> str:
    """
    >>> from app.api.validation import Name; import msgspec
    >>> class Cup(msgspec.Struct):
    ...     name: Name
    >>> readable("Expected `int`, got `str`", Cup, "name")
    'enter a whole number'
    >>> readable("Expected `str` matching regex '^a$'", Cup, "name")
    '1 to 64 letters, digits, `_`, `.` or `-`; starts with a letter or digit'
    >>> readable("Expected `int` >= 3", Cup, "name"), readable("`much` is wrong", Cup, "name")
    ('must be at least 3', '`much` is wrong')
    """
    message = message[:1].lower() + message[1:]
    if _PATTERN in message:
        return _description(kind, field) or "has characters that are not permitted here"
    for pattern, words in _WORDS:
        if found := pattern.match(message):
            return found.expand(words)
    return message


def _description(kind: type[Any], name: str) -> str:
    """Of the field's type, as the REST API documents it."""
    fields: Any = inspect.type_info(kind)
    of_field = next((each.type for each in fields.fields if each.encode_name == name), None)
    known = of_field.extra_json_schema or {} if isinstance(of_field, inspect.Metadata) else {}
    return str(known.get("description", ""))
