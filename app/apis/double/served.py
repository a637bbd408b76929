"""The document of a double: that of the API without what is not modelled, in any order. Pure."""

from collections.abc import Iterable, Mapping
from random import Random
from typing import Final
from urllib.parse import unquote

from app.apis.catalog import Operation
from app.apis.double.model import Model
from app.base.values import Json

_HOPS: Final = 4  # from a reference to another
_ORDERLESS: Final = ("paths", "properties", "schemas", "definitions", "parameters")


def served_document(
    model: Model, seed: str | None = None, shown: Iterable[Operation] | None = None
) -> dict[str, Json]:
    """What the double answers to, or the `shown` operations, some of which it may refuse. With a seed, operations,
    parameters and fields stand in another order: none of them means anything.
    """
    if shown is None:
        shown = (each.operation for each in model.operations.values())
    kept = {(each.path, each.method) for each in shown}
    paths: dict[str, Json] = {}
    for path, item in model.document["paths"].items():
        if not isinstance(item, Mapping):
            continue
        left = {name: each for name, each in item.items() if not _is_left_out(path, name, kept)}
        if any((path, name.upper()) in kept for name in left):
            paths[path] = left
    document: dict[str, Json] = _inlined({**model.document, "paths": paths}, model.document, 0)
    return document if seed is None else _shuffled(document, Random(f"{seed} order"), "")


def _inlined(value: Json, document: Mapping[str, Json], hops: int) -> Json:
    """With what stands at paths in place of references to it: the path, or its place in a list, may be another."""
    if isinstance(value, list):
        return [_inlined(each, document, hops) for each in value]
    if not isinstance(value, Mapping):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/paths/") and hops < _HOPS:
        return _inlined(_target(reference, document), document, hops + 1)
    return {name: _inlined(each, document, hops) for name, each in value.items()}


def _target(reference: str, document: Mapping[str, Json]) -> Json:
    """Any value, if there is nothing at the place."""
    found: Json = document
    for part in unquote(reference).removeprefix("#/").split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, Mapping) and name in found:
            found = found[name]
        else:
            return {}
    return found


def _is_left_out(path: str, name: str, kept: set[tuple[str, str]]) -> bool:
    methods = (
        "get",
        "put",
        "post",
        "delete",
        "options",
        "head",
        "patch",
        "trace",
        "query",
        "additionalOperations",
    )
    return name in methods and (path, name.upper()) not in kept


def _shuffled(value: Json, rng: Random, name: str) -> Json:
    """The members of some objects, and of a list of parameters, in any order."""
    if isinstance(value, Mapping):
        names = list(value)
        if name in _ORDERLESS:
            rng.shuffle(names)
        return {each: _shuffled(value[each], rng, each if name != "properties" else "") for each in names}
    if isinstance(value, list):
        found = [_shuffled(each, rng, "") for each in value]
        if name == "parameters":
            rng.shuffle(found)
        return found
    return value
