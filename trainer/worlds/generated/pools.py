"""Splits lists into disjoint pools for training, validation and test."""

from functools import cache
from typing import Literal, TypeAlias

Pool: TypeAlias = Literal["train", "validation", "test"]

_FIFTH: dict[int, Pool] = {3: "validation", 4: "test"}  # of each five, the others train


@cache
def part(words: str, pool: Pool, separator: str = ",", more: str = "") -> tuple[str, ...]:
    """The words of a list that belong to a pool, in training `more` too. Every list of five has words of each.

    >>> part("a, b, c, d, e, f", "train"), part("a, b, c, d, e, f", "test")
    (('a', 'b', 'c', 'f'), ('e',))
    """
    own = tuple(word for at, word in enumerate(split(words, separator)) if _FIFTH.get(at % 5, "train") == pool)
    return own + split(more, separator) if pool == "train" else own


@cache
def split(words: str, separator: str = ",") -> tuple[str, ...]:
    """
    >>> split("a, b"), split("")
    (('a', 'b'), ())
    """
    return tuple(word.strip() for word in words.split(separator)) if words else ()
