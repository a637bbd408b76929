"""Decodes JSON or YAML into plain JSON values, by YAML 1.2's core schema: dates and `yes` stay text."""

import json
import re
from typing import Any

import msgspec
import yaml

from app.base.errors import ApiDocumentError
from app.base.untrusted import JsonError, check_number, decode_json
from app.base.values import Json

_NODES = 1_000_000  # a runner's event loop waits while it decodes them; aliases let a small text hold many
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
        return _Conversion().of(yaml.load(text, _Loader)).value
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ApiDocumentError(f"the document is neither JSON nor YAML: {line}{error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error) or "it is nested too deeply"
        raise ApiDocumentError(f"the document is neither JSON nor YAML: {reason}") from error


def to_json_text(value: Json) -> bytes:
    """JSON, also of integers of more than 64 bits and of half a surrogate pair."""
    try:
        return msgspec.json.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return json.dumps(value).encode()


class _Loader(yaml.CSafeLoader):
    """Loads YAML 1.2's core types only, by libyaml, and merges (`<<`) of limited size."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        pairs = len(node.value)
        super().flatten_mapping(node)
        self._merged += max(0, len(node.value) - pairs)
        if self._merged > _NODES:
            raise _endless()


_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", list("-+0123456789")),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
    ("merge", r"^<<$", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), _first)


class _Plain(msgspec.Struct, frozen=True):
    """A YAML value as JSON. The targets of aliases are shared, but `nodes` and `depth` count each time."""

    value: Json
    nodes: int = 1
    depth: int = 0


class _Conversion:
    """Converts what YAML has and JSON lacks: keys that are not text, and aliases."""

    def __init__(self) -> None:
        self._known: dict[int, _Plain] = {}  # by identity

    def of(self, value: Any, level: int = 0) -> _Plain:
        if level > _DEPTH:  # perhaps a part of itself
            raise _endless()
        if isinstance(value, dict | list):
            known = self._known.get(id(value))
            if known is None:
                known = self._known[id(value)] = self._container(value, level)
            return known
        if isinstance(value, int | float):
            check_number(value)
        elif value is not None and not isinstance(value, str):
            raise ApiDocumentError(f"the document holds a {type(value).__name__}, which JSON lacks")
        return _Plain(value)

    def _container(self, value: dict[Any, Any] | list[Any], level: int) -> _Plain:
        parts = [self.of(each, level + 1) for each in (value.values() if isinstance(value, dict) else value)]
        nodes, depth = 1 + sum(each.nodes for each in parts), 1 + max((each.depth for each in parts), default=0)
        if nodes > _NODES or depth > _DEPTH:
            raise _endless()
        plain: Json = [each.value for each in parts]
        if isinstance(value, dict):
            plain = dict(zip(map(_key, value), plain, strict=True))
        return _Plain(plain, nodes, depth)


def _endless() -> ApiDocumentError:
    return ApiDocumentError("the document is too large: its aliases repeat one another without end")


def _key(name: Any) -> str:
    if isinstance(name, bool):
        return str(name).lower()
    return "null" if name is None else str(name)
