"""Several ranked lists become one, or nothing at all: an unfitting skill costs tokens. Pure."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar, get_args

import msgspec

List: TypeAlias = Literal["query_ngram", "query_embedding", "skill_embedding", "scenario"]
Mode: TypeAlias = Literal["fused", "query_ngram", "query_embedding", "skill_embedding", "scenario"]
Key = TypeVar("Key", bound=Hashable)
Scored: TypeAlias = Sequence[tuple[Key, float]]  # best first
Ranked: TypeAlias = list[tuple[Key, dict[str, int]]]  # best first, with the place from 1 in each list that held it

DEPTH = 50  # places of a list that count
_NEVER = 2.0  # no cosine is as large


class Rules(msgspec.Struct, frozen=True):
    """How much each list counts, and the similarity in any one of them that lets a skill be offered."""

    weights: Mapping[List, float]
    at_least: Mapping[List, float]


# Measured with one skill for each of the practice world's 161 templates, asked in all phrasings with other
# details, vectors of all-MiniLM-L6-v2. N-grams of .75 or a cosine of .80: the right skill is offered to 77 % of
# tasks, with 0.2 others; where the right one is missing, 1 % are offered anything. N-grams of .50: 85 %, 1.4 and
# 19 %. A cosine of .70 offers something to 26 % without a right skill. The source's cosine (about .5 for one app,
# whatever the verb) tells too little to admit anything; a list that stands alone makes do with what it can tell.
FUSED = Rules(
    weights={"query_ngram": 1.0, "query_embedding": 0.5, "skill_embedding": 0.25, "scenario": 4.0},
    at_least={"query_ngram": 0.75, "query_embedding": 0.8, "skill_embedding": _NEVER, "scenario": 0.0},
)
ALONE = Rules(
    weights={"query_ngram": 1.0, "query_embedding": 1.0, "skill_embedding": 1.0, "scenario": 1.0},
    at_least={"query_ngram": 0.75, "query_embedding": 0.5, "skill_embedding": 0.4, "scenario": 0.0},
)


def lists_of(mode: Mode) -> tuple[List, ...]:
    """What a mode looks at."""
    return get_args(List) if mode == "fused" else (mode,)


def wants_vectors(mode: Mode) -> bool:
    return mode not in ("query_ngram", "scenario")


def rules_of(mode: Mode) -> Rules:
    return FUSED if mode == "fused" else ALONE


def fuse(
    lists: Mapping[List, Scored[Key]], rules: Rules, limit: int, newest: Callable[[Key], tuple[int, str]]
) -> Ranked[Key]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): a place is worth weight / (60 + place).

    `newest` gives a key's version and name: of equals the higher version comes first, then the name decides.
    """

    def order(entry: tuple[Key, float]) -> tuple[float, int, str]:
        version, name = newest(entry[0])
        return -entry[1], -version, name

    ranks: dict[Key, dict[str, int]] = {}
    worth: dict[Key, float] = {}
    fitting: set[Key] = set()
    for label, entries in lists.items():
        for place, (key, similarity) in enumerate(sorted(entries, key=order)[:DEPTH], start=1):
            ranks.setdefault(key, {})[label] = place
            worth[key] = worth.get(key, 0.0) + rules.weights[label] / (60 + place)
            if similarity >= rules.at_least[label]:
                fitting.add(key)
    best = sorted(((key, worth[key]) for key in fitting), key=order)
    return [(key, ranks[key]) for key, _ in best[:limit]]
