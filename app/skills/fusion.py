"""Reciprocal rank fusion of several ranked lists, with abstention: an unrelated skill only costs tokens. Pure."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

Key = TypeVar("Key", bound=Hashable)
Scored: TypeAlias = Sequence[tuple[Key, float]]  # (key, similarity), best first
Ranked: TypeAlias = list[tuple[Key, dict[str, int]]]  # best first, with the rank from 1 in each list that held it

DEPTH = 50  # ranks of a list that count


class FusionWeights(msgspec.Struct, frozen=True):
    """The weight of each list, and the similarity in any one of them that admits a skill."""

    weights: Mapping[str, float]
    thresholds: Mapping[str, float]


def fuse(
    lists: Mapping[str, Scored[Key]],
    settings: FusionWeights,
    limit: int,
    newest: Callable[[Key], tuple[int, str]],
) -> Ranked[Key]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): a rank is worth weight / (60 + rank).

    `newest` returns a key's version and name: ties go to the higher version, then to the name.
    """

    def order(entry: tuple[Key, float]) -> tuple[float, int, str]:
        version, name = newest(entry[0])
        return -entry[1], -version, name

    ranks: dict[Key, dict[str, int]] = {}
    worth: dict[Key, float] = {}
    admitted: set[Key] = set()
    for label, entries in lists.items():
        for rank, (key, similarity) in enumerate(sorted(entries, key=order)[:DEPTH], start=1):
            ranks.setdefault(key, {})[label] = rank
            worth[key] = worth.get(key, 0.0) + settings.weights[label] / (60 + rank)
            if similarity >= settings.thresholds[label]:
                admitted.add(key)
    best = sorted(((key, worth[key]) for key in admitted), key=order)
    return [(key, ranks[key]) for key, _ in best[:limit]]
