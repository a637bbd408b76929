"""How tasks form the chains of SAGE's Sequential Rollout.

SAGE (arXiv 2512.17102, "Sequential Rollout"): the tasks of a chain are worked through in order, and the skills
that the earlier ones made are offered to the later ones. G chains of the same tasks form a group; none has access
to the skills of another.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


def sample_chain(tasks: Sequence[T], length: int, rng: Random) -> tuple[T, ...]:
    """`length` different tasks of one scenario in random order, or all of them if it has fewer."""
    return tuple(rng.sample(tasks, min(length, len(tasks))))


def nearest_chain(first: T, ranked: Sequence[T], length: int) -> tuple[T, ...]:
    """A chain without labels: `first`, then the tasks with the nearest instructions, nearest first.

    `ranked` may contain `first` itself.
    """
    others = [task for task in ranked if task != first]
    return (first, *others[: length - 1])
