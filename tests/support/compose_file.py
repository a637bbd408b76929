"""docker/compose.yaml, read as Docker Compose would, for tests without Docker."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
PASSWORDS = {"POSTGRES_PASSWORD": "one", "REDIS_PASSWORD": "two", "SAGE_SECRET_KEY": "three" * 8}
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<sign>[-?])(?P<rest>[^${}]*))?\}")  # the innermost


class UnsetError(Exception):
    """A required variable is not set. The message comes from the file."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """The command and environment of a service; `read` has the rest."""

    command: list[str] | str = []
    environment: dict[str, str] = {}

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.command) if isinstance(self.command, str) else self.command


def read(values: Mapping[str, str] = PASSWORDS) -> dict[str, Any]:
    """The file with its variables replaced by `values` or their defaults. Raises UnsetError."""
    filled: dict[str, Any] = _fill(yaml.safe_load(COMPOSE.read_text()), values)
    return filled


def service(name: str, values: Mapping[str, str] = PASSWORDS) -> Service:
    return msgspec.convert(read(values)["services"][name], Service)


def _fill(node: Any, values: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _fill(each, values) for key, each in node.items()}
    if isinstance(node, list):
        return [_fill(each, values) for each in node]
    return _interpolate(node, values) if isinstance(node, str) else node


def _interpolate(text: str, values: Mapping[str, str]) -> str:
    """
    >>> _interpolate("${A:-${B:?set B}!}", {"B": "b"})
    'b!'
    """
    while match := _VARIABLE.search(text):
        value = values.get(match["name"], "")
        if not value and match["sign"] == "?":
            raise UnsetError(f"{match['name']}: {match['rest']}")
        text = text[: match.start()] + (value or match["rest"] or "") + text[match.end() :]
    return text
