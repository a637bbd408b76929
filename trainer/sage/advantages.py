"""How much better a rollout did than its group: the centred rewards of GRPO.

SAGE (arXiv 2512.17102), for position k of a chain and rollout i of the G in its group:

    A_i^k = R_i^k - mean_{j=1..G} R_j^k

Positions are centred apart and never summed. There is no division by the standard deviation: it would favour
groups that are nearly all right or all wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from statistics import fmean, pstdev

import msgspec

from app.records import Trajectory

MIN_SIGNAL = 0.01  # groups whose |advantage| stays below it are dropped (LOOP, arXiv 2502.01600)


class ScoredRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout with its reward, and those it is compared with: the same group and position."""

    trajectory: Trajectory
    reward: float  # R = score + bonus
    score: float
    bonus: float
    group: str
    position: int  # k, in its chain, from 0
    staleness: int = 0  # releases between the policy that sampled it and the one that learns


class AdvantagedRollout(msgspec.Struct, frozen=True):
    """A rollout with its advantage over the group."""

    rollout: ScoredRollout
    advantage: float  # A
    group_size: int  # G

    @property
    def has_signal(self) -> bool:
        return abs(self.advantage) >= MIN_SIGNAL


def compute_advantages(rollouts: Sequence[ScoredRollout], *, normalise: bool = False) -> list[AdvantagedRollout]:
    """The advantage of each rollout in its group and position, in the order of `rollouts`."""
    cells = [(each.group, each.position) for each in rollouts]
    sizes = Counter(cells)
    advantages = centre([each.reward for each in rollouts], cells, normalise=normalise)
    return [
        AdvantagedRollout(each, advantage, sizes[cell])
        for each, cell, advantage in zip(rollouts, cells, advantages, strict=True)
    ]


def centre(rewards: Sequence[float], cells: Sequence[Hashable], *, normalise: bool = False) -> list[float]:
    """Each reward minus the mean of its cell.

    `normalise` divides by the cell's standard deviation, as the first GRPO did (arXiv 2402.03300).

    >>> centre([2.0, 0.0, 1.0], ["a", "a", "b"])
    [1.0, -1.0, 0.0]
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for reward, cell in zip(rewards, cells, strict=True):
        members[cell].append(reward)
    means = {cell: fmean(values) for cell, values in members.items()}
    scales = {cell: pstdev(values) + 1e-4 if normalise else 1.0 for cell, values in members.items()}
    return [(reward - means[cell]) / scales[cell] for reward, cell in zip(rewards, cells, strict=True)]
