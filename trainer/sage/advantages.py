"""How much better a rollout did than its group: the centred rewards of GRPO. Pure, no torch."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, pstdev

import msgspec

from app.records import Trajectory

NOTHING = 0.01  # an advantage smaller than this teaches nothing (LOOP, arXiv 2502.01600)


class Rewarded(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout with its reward, and those it is compared with: the same group and position."""

    trajectory: Trajectory
    reward: float  # score and bonus
    score: float
    bonus: float
    group: str
    position: int  # in its chain, from 0
    staleness: int = 0  # releases between the policy that sampled it and the one that learns


class Advised(msgspec.Struct, frozen=True):
    rewarded: Rewarded
    advantage: float
    group_size: int

    @property
    def teaches(self) -> bool:
        return abs(self.advantage) >= NOTHING


def advise(items: Sequence[Rewarded], *, normalise: bool = False) -> list[Advised]:
    """Reward minus the mean of its group and position, in the order of `items`.

    SAGE does not divide by the spread, which would favour groups that are nearly all right or all wrong;
    `normalise` does, as the first GRPO did (arXiv 2402.03300).
    """
    groups: dict[tuple[str, int], list[float]] = defaultdict(list)
    for item in items:
        groups[item.group, item.position].append(item.reward)
    means = {key: fmean(rewards) for key, rewards in groups.items()}
    spreads = {key: pstdev(rewards) for key, rewards in groups.items()}
    advised = []
    for item in items:
        key = (item.group, item.position)
        centred = item.reward - means[key]
        scale = 1 / (spreads[key] + 1e-4) if normalise else 1.0
        advised.append(Advised(item, centred * scale, len(groups[key])))
    return advised
