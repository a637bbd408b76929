"""Advantages: how much better a rollout did than its group, the centered rewards of GRPO.

SAGE (arXiv 2512.17102), for position k of a chain and rollout i of the G in its group:

    A_i^k = R_i^k - mean_{j=1..G} R_j^k

Each position is centered separately, and positions are never summed. By default there is no division by the
standard deviation: it would favor groups that are nearly all right or all wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from statistics import fmean, pstdev

import msgspec

from app.base.values import Trajectory

MIN_SIGNAL = 0.01  # rollouts whose |advantage| is smaller are not trained on (as in LOOP, arXiv 2502.01600)
_MIN_DEVIATION = 1e-4  # added to the standard deviation, which is 0 in a group of equal rewards


class ScoredRollout(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout with its reward. It is compared with the rollouts of the same group and position."""

    trajectory: Trajectory
    reward: float  # R = score + bonus
    score: float
    bonus: float
    group: str
    position: int  # k, in its chain, from 0; of served tasks: 1 if skills were offered, 0 if not
    staleness: int = 0  # releases between the policy that sampled it and the one that is trained


class AdvantagedRollout(msgspec.Struct, frozen=True):
    """A rollout with its advantage over the group."""

    rollout: ScoredRollout
    advantage: float  # A
    group_size: int  # G

    @property
    def has_signal(self) -> bool:
        """Whether it is trained on."""
        return abs(self.advantage) >= MIN_SIGNAL


def compute_advantages(rollouts: Sequence[ScoredRollout], *, normalize: bool = False) -> list[AdvantagedRollout]:
    """The advantage of each rollout in its group and position, in the order of `rollouts`."""
    compared_with = [(each.group, each.position) for each in rollouts]
    sizes = Counter(compared_with)
    advantages = center([each.reward for each in rollouts], compared_with, normalize=normalize)
    return [
        AdvantagedRollout(each, advantage, sizes[key])
        for each, key, advantage in zip(rollouts, compared_with, advantages, strict=True)
    ]


def center(rewards: Sequence[float], keys: Sequence[Hashable], *, normalize: bool = False) -> list[float]:
    """Each reward minus the mean of all rewards with the same key.

    `normalize` also divides by their standard deviation, as the original GRPO does (arXiv 2402.03300).

    >>> center([2.0, 0.0, 1.0], ["a", "a", "b"])
    [1.0, -1.0, 0.0]
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for reward, key in zip(rewards, keys, strict=True):
        members[key].append(reward)
    means = {key: fmean(values) for key, values in members.items()}
    scales = {key: pstdev(values) + _MIN_DEVIATION if normalize else 1.0 for key, values in members.items()}
    return [(reward - means[key]) / scales[key] for reward, key in zip(rewards, keys, strict=True)]
