"""Logged experience dealt out to optimizer steps. Groups stay whole: what they teach is a comparison. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

import msgspec

from trainer.advantages import Rewarded


def in_steps(rewarded: Sequence[Rewarded], groups_per_step: int, steps: int, seed: int) -> list[list[Rewarded]]:
    """So many steps, in an order that only the seed decides; where the groups are used up, they are dealt again.

    What was dealt before is stale: the policy has learned from it, so it is no longer the one that sampled it.
    """
    groups: dict[str, list[Rewarded]] = defaultdict(list)
    for each in rewarded:
        groups[each.group].append(each)
    return list(islice(_deal(groups, groups_per_step, Random(f"steps {seed}")), steps if groups else 0))


def _deal(groups: dict[str, list[Rewarded]], count: int, rng: Random) -> Iterator[list[Rewarded]]:
    dealt = False
    while True:
        names = sorted(groups)
        rng.shuffle(names)
        for start in range(0, len(names), count):
            step = [each for name in names[start : start + count] for each in groups[name]]
            yield [_again(each) for each in step] if dealt else step
        dealt = True


def _again(rewarded: Rewarded) -> Rewarded:
    return msgspec.structs.replace(rewarded, staleness=max(1, rewarded.staleness))
