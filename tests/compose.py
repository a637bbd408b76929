"""docker/compose.yaml as Docker Compose would read it, for tests that have no Docker."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker" / "compose.yaml"
PASSWORDS = {"POSTGRES_PASSWORD": "one", "REDIS_PASSWORD": "two"}
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<sign>[-?])(?P<rest>[^${}]*))?\}")  # the innermost


class UnsetError(Exception):
    """A variable that has no default is not set. The message is the file's own."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """What a test needs of one; all else is in `read`."""

    command: list[str] | str = []
    environment: dict[str, str] = {}

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.command) if isinstance(self.command, str) else self.command


def read(values: Mapping[str, str] = PASSWORDS) -> dict[str, Any]:
    """With all variables filled in from `values` or by default. Raises UnsetError."""
    filled: dict[str, Any] = _fill(yaml.safe_load(COMPOSE.read_text()), values)
    return filled


def service(name: str, values: Mapping[str, str] = PASSWORDS) -> Service:
    """The one place where others learn how a service is started."""
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
    while found := _VARIABLE.search(text):
        value = values.get(found["name"], "")
        if not value and found["sign"] == "?":
            raise UnsetError(f"{found['name']}: {found['rest']}")
        text = text[: found.start()] + (value or found["rest"] or "") + text[found.end() :]
    return text
