"""Fingerprints of operations: equal if an agent, or if code, cannot tell two versions of an operation apart."""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.catalog import App
from app.base.values import Json

_UNSEEN: Final[dict[str, Json]] = {
    "security": None,
    "operation_id": "",
    "former_names": (),
    "tags": (),
    "approval": None,
    "explore": None,
}
_WORDS: Final = frozenset({"title", "summary", "description"})


def fingerprints(app: App) -> dict[str, str]:
    """By operation. The URL of the app's server does not count, nor do credentials, which the gateway adds."""
    seen = {name: msgspec.structs.replace(each, **_UNSEEN) for name, each in app.operations.items()}
    known: dict[int, str] = {}
    return {name: _fingerprint(operation, known) for name, operation in seen.items()}


def shapes(app: App) -> dict[str, str]:
    """By operation: fingerprints without words for people, so that code which fits one version fits the other."""
    unseen = {**_UNSEEN, "summary": "", "description": ""}
    bare = {name: msgspec.structs.replace(each, **unseen) for name, each in app.operations.items()}
    known: dict[int, str] = {}
    return {name: _fingerprint(operation, known, _WORDS) for name, operation in bare.items()}


def _fingerprint(value: Json, known: dict[int, str], without: frozenset[str] = frozenset()) -> str:
    """Schemas share parts, so each is hashed once. `known` is keyed by identity, so all values must live on.

    `without` are names whose texts do not count.
    """
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        parts = [f"{name}={_fingerprint(fields[name], known, without)}" for name in _counting(fields, without)]
    elif isinstance(value, dict):
        names = sorted(_counting(value, without), key=str)
        parts = [f"{key!r}:{_fingerprint(value[key], known, without)}" for key in names]
    elif isinstance(value, list | tuple):
        parts = [_fingerprint(each, known, without) for each in value]
    else:
        return repr(value)
    digest = hashlib.sha256(f"{type(value).__name__}({','.join(parts)})".encode()).hexdigest()
    known[id(value)] = digest
    return digest


def _counting(named: Mapping[str, Json], without: frozenset[str]) -> list[str]:
    """A property that is called `description` counts: its value is a schema."""
    return [name for name, value in named.items() if not (name in without and isinstance(value, str))]
