"""Sequential rollout: how tasks form a chain, and the step of a chain as the reward sees it.

SAGE (arXiv 2512.17102, "Sequential Rollout"): the tasks of a chain are worked through in order, and the skills
that the earlier ones made are offered to the later ones. G chains of the same tasks form a group; none sees the
skills of another.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar
from uuid import UUID

import msgspec

T = TypeVar("T")


class ChainStep(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a chain, as the reward sees it."""

    score: float  # r, of the verifier, in [0, 1]
    success: bool  # r = 1
    no_code: bool = False  # it ended because the policy wrote no code
    made: frozenset[UUID] = frozenset()  # skills it left that may earn a bonus: no wrappers of a single API
    used: frozenset[UUID] = frozenset()  # offered skills that the sandbox executed and that returned
    named: frozenset[UUID] = frozenset()  # offered skills that its code calls by name and does not redefine


def sample_chain(tasks: Sequence[T], length: int, rng: Random) -> tuple[T, ...]:
    """`length` different tasks of one scenario in random order, or all of them where it has fewer."""
    return tuple(rng.sample(tasks, min(length, len(tasks))))


def nearest_chain(first: T, ranked: Sequence[T], length: int) -> tuple[T, ...]:
    """A chain without labels: `first`, then the tasks whose instructions are nearest to its own, nearest first.

    `ranked` may hold `first` itself.
    """
    others = [task for task in ranked if task != first]
    return (first, *others[: length - 1])
