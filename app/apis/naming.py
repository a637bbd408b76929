"""The names of an API's operations in the agent's code: unique, and kept when the document changes. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from app.apis.catalog import App, Operation
from app.apis.names import UniqueNames, valid_name
from app.apis.readable_names import path_name, readable_name

Naming: TypeAlias = Literal["operation_id", "readable"]
"""`operation_id`: as the document writes them. `readable`: verbs first, without what frameworks add."""


def place_of(operation: Operation) -> str:
    """Where it is called, such as `GET /mails`: unique within a document."""
    return _storable(f"{operation.method} {operation.path}")


def keys_of(operations: Sequence[Operation]) -> list[str]:
    """What identifies each one in all versions of its document: its operationId, or where it is called."""
    seen: set[str] = set()
    keys = []
    for each in operations:
        key = _storable(each.operation_id)
        key = key if key and key not in seen else place_of(each)
        seen.add(key)
        keys.append(key)
    return keys


def known_names(names: Mapping[str, str], operations: Sequence[Operation]) -> dict[str, str]:
    """The entries of `names`, by key or by place, that the operations have, by key. Each name once."""
    found: dict[str, str] = {}  # key by name
    for key, each in zip(keys_of(operations), operations, strict=True):
        if name := names.get(key) or names.get(place_of(each)):
            found.setdefault(name, key)
    return {key: name for name, key in found.items()}


def name_operations(app: App, naming: Naming, kept: Mapping[str, str]) -> list[str]:
    """A name for each operation, in order. Those with a key in `kept` keep that name.

    A readable name that several operations would have is made of method and path instead, or else of the
    operationId. Names of other protocols than OpenAPI stay.
    """
    operations = list(app.operations.values())
    names = [kept.get(key, "") for key in keys_of(operations)]
    if naming == "readable" and app.protocol == "openapi":
        for level in (_by_identifier, _by_path):
            _fill(names, [level(each) for each in operations])
    unique = UniqueNames()
    for name in filter(None, names):
        unique.add(name)
    return [name or unique.add(each.name) for name, each in zip(names, operations, strict=True)]


def readable_names(app: App) -> dict[str, str]:
    """What operations would be called by readable names, by their names in the document; of those that differ."""
    pairs = zip(app.operations, name_operations(app, "readable", {}), strict=True)
    return {name: readable for name, readable in pairs if name != readable}


def _storable(text: str) -> str:
    """As in the document once it is stored: PostgreSQL's text lacks NUL."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _fill(names: list[str], proposed: Sequence[str]) -> None:
    """Set the names that are missing, where a proposal is given once and is not taken."""
    open_places = [place for place, name in enumerate(names) if not name]
    times = Counter(proposed[place] for place in open_places)
    taken = set(names)
    for place in open_places:
        if times[proposed[place]] == 1 and proposed[place] not in taken:
            names[place] = proposed[place]


def _by_identifier(operation: Operation) -> str:
    return valid_name(readable_name(operation.operation_id, operation.method, operation.path))


def _by_path(operation: Operation) -> str:
    return valid_name(path_name(operation.method, operation.path))
