"""The document of a double: that of the API without what is not modelled, in any order. Pure."""

from collections.abc import Mapping
from random import Random
from typing import Final

from app.apis.double.model import Model
from app.records import Json

_ORDERLESS: Final = ("paths", "properties", "schemas", "definitions", "parameters")


def served_document(model: Model, seed: str | None = None) -> dict[str, Json]:
    """What the double answers to. With a seed, operations, parameters and fields stand in another order: none of
    them means anything.
    """
    kept = {(each.operation.path, each.operation.method) for each in model.operations.values()}
    paths: dict[str, Json] = {}
    for path, item in model.document["paths"].items():
        if not isinstance(item, Mapping):
            continue
        left = {name: each for name, each in item.items() if not _is_left_out(path, name, kept)}
        if any((path, name.upper()) in kept for name in left):
            paths[path] = left
    document = {**model.document, "paths": paths}
    return document if seed is None else _shuffled(document, Random(f"{seed} order"), "")


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
