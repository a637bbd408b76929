"""Which module of a base model each module of an adapter is, though their names may begin differently.

What stands before the layers differs between a model in memory and the files it came from; and a model may have
several towers of layers, such as one that sees beside one that speaks.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile

Shapes = Mapping[str, tuple[int, ...] | None]
"""Of weights, by the name of their module. None where the files do not tell, as of packed weights."""

_LAYER = re.compile(r"(?P<tower>.*?\blayers)\.(?P<number>\d+)\.(?P<part>.+)")


def counterparts(adapted: Shapes, base: Shapes) -> dict[str, str]:
    """The names in the base by those in the adapter, without those that the base does not have.

    `adapted` says what shapes the weights must have. A tower of the adapter is the one of the base whose name ends
    as its own does, and where several do, the one that it fits.
    """
    towers = _towers(base)
    found: dict[str, str] = {}

    def likeness(candidate: tuple[int, dict[str, str]]) -> tuple[bool, int, int]:
        shared_end, pairs = candidate
        return bool(pairs), shared_end, sum(base[other] in (None, adapted[own]) for own, other in pairs.items())

    for tower, places in _towers(adapted).items():
        candidates = [(_shared_end(tower, name), _paired(places, others)) for name, others in towers.items()]
        found |= max(candidates, key=likeness, default=(0, {}))[1]
    return found


def left_out(changed: Collection[str], base: Iterable[str]) -> list[str]:
    """What is not changed, though the same part of another layer of its tower is."""
    parts = {_part(name) for name in changed} - {None}
    return sorted(name for name in base if name not in changed and _part(name) in parts)


def _towers(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Full names by tower and place. What is in no layer has its place in the module around it."""
    towers: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        if match := _LAYER.fullmatch(name):
            towers[match["tower"]][f"{match['number']}.{match['part']}"] = name
        else:
            around, _, place = name.rpartition(".")
            towers[around][place] = name
    return towers


def _paired(own: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    return {own[place]: others[place] for place in own if place in others}


def _shared_end(one: str, other: str) -> int:
    """
    >>> _shared_end("language_model.model.layers", "model.layers")
    2
    """
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _part(name: str) -> tuple[str, str] | None:
    match = _LAYER.fullmatch(name)
    return (match["tower"], match["part"]) if match else None
