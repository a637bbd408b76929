"""Matches the modules of an adapter to those of a base model, although their prefixes may differ.

The prefix before the layers differs between a model in memory and its files; and a model may have several towers
of layers, such as a vision and a language tower.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile

Shapes = Mapping[str, tuple[int, ...] | None]
"""Weight shapes by module name. None if the files do not show them, as for packed weights."""

_LAYER = re.compile(r"(?P<tower>.*?\blayers)\.(?P<number>\d+)\.(?P<part>.+)")


def match_modules(adapted: Shapes, base: Shapes) -> dict[str, str]:
    """Names in the base by names in the adapter, without modules that the base lacks.

    `adapted` has the shapes that the weights must have. A tower of the adapter matches the tower of the base with
    the longest common suffix, and among several the one whose shapes fit.
    """
    towers = _towers(base)
    matches: dict[str, str] = {}

    def similarity(candidate: tuple[int, dict[str, str]]) -> tuple[bool, int, int]:
        shared_end, pairs = candidate
        return bool(pairs), shared_end, sum(base[other] in (None, adapted[own]) for own, other in pairs.items())

    for tower, modules in _towers(adapted).items():
        candidates = [(_common_suffix(tower, name), _pair_up(modules, others)) for name, others in towers.items()]
        matches |= max(candidates, key=similarity, default=(0, {}))[1]
    return matches


def unadapted_modules(changed: Collection[str], base: Iterable[str]) -> list[str]:
    """Modules that are not adapted, although the same module in another layer of their tower is."""
    parts = {_part(name) for name in changed} - {None}
    return sorted(name for name in base if name not in changed and _part(name) in parts)


def _towers(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Full names by tower and position. A module outside the layers is positioned in its parent module."""
    towers: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        if match := _LAYER.fullmatch(name):
            towers[match["tower"]][f"{match['number']}.{match['part']}"] = name
        else:
            parent, _, place = name.rpartition(".")
            towers[parent][place] = name
    return towers


def _pair_up(own: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    return {own[place]: others[place] for place in own if place in others}


def _common_suffix(one: str, other: str) -> int:
    """
    >>> _common_suffix("language_model.model.layers", "model.layers")
    2
    """
    pairs = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _part(name: str) -> tuple[str, str] | None:
    match = _LAYER.fullmatch(name)
    return (match["tower"], match["part"]) if match else None
