"""Decodes JSON or YAML into plain JSON values, by YAML 1.2's core schema: dates and `yes` stay text."""

import re
from typing import Any

import yaml

from app.errors import ApiDocumentError
from app.records import Json
from app.untrusted.json_text import JsonError, check_number, decode_json

_NODES = 2_000_000  # aliases let a small text expand without bound
_DEPTH = 200


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
        return _Plain().of(yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ApiDocumentError(f"the document is neither JSON nor YAML: {line}{error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error) or "it is nested too deeply"
        raise ApiDocumentError(f"the document is neither JSON nor YAML: {reason}") from error


class _Loader(yaml.CSafeLoader):
    """Loads YAML 1.2's core types only."""


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


class _Plain:
    """Converts YAML values to JSON: keys that are not text, and aliases."""

    def __init__(self) -> None:
        self._nodes = 0

    def of(self, value: Any, depth: int = 0) -> Json:
        self._nodes += 1
        if self._nodes > _NODES or depth > _DEPTH:
            raise ApiDocumentError("the document is too large: its aliases repeat one another without end")
        if isinstance(value, dict):
            return {_key(name): self.of(each, depth + 1) for name, each in value.items()}
        if isinstance(value, list):
            return [self.of(each, depth + 1) for each in value]
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int | float):
            check_number(value)
            return value
        raise ApiDocumentError(f"the document holds a {type(value).__name__}, which JSON lacks")


def _key(name: Any) -> str:
    if isinstance(name, bool):
        return str(name).lower()
    return "null" if name is None else str(name)
