"""Splits lists into disjoint pools for training, validation and test."""

from functools import cache
from typing import Literal, TypeAlias

Pool: TypeAlias = Literal["train", "validation", "test"]

_FIFTH: dict[int, Pool] = {3: "validation", 4: "test"}  # of each five, the others train


@cache
def part(words: str, pool: Pool, separator: str = ",") -> tuple[str, ...]:
    """The words of a list that belong to a pool. Every list of five has words of each.

    >>> part("a, b, c, d, e, f", "train"), part("a, b, c, d, e, f", "test")
    (('a', 'b', 'c', 'f'), ('e',))
    """
    listed = [word.strip() for word in words.split(separator)]
    return tuple(word for at, word in enumerate(listed) if _FIFTH.get(at % 5, "train") == pool)
