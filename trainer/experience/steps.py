"""Logged experience dealt out to optimizer steps. Groups stay whole: what they teach is a comparison. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from trainer.sage.advantages import ScoredRollout


def in_steps(
    rollouts: Sequence[ScoredRollout], groups_per_step: int, steps: int, seed: int
) -> list[list[ScoredRollout]]:
    """At most `steps` of them, in an order that only the seed decides; each trajectory in one step at most."""
    groups: dict[str, list[ScoredRollout]] = defaultdict(list)
    for each in rollouts:
        groups[each.group].append(each)
    names = sorted(groups)
    Random(f"steps {seed}").shuffle(names)
    dealt = [names[start : start + groups_per_step] for start in range(0, len(names), groups_per_step)]
    return [[each for name in some for each in groups[name]] for some in dealt[:steps]]
