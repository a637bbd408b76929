"""Split logged rollouts into steps, group by group."""

from collections import defaultdict
from collections.abc import Sequence
from random import Random

from trainer.sage.advantages import ScoredRollout


def split_into_steps(
    rollouts: Sequence[ScoredRollout], groups_per_step: int, steps: int, seed: int
) -> list[list[ScoredRollout]]:
    """At most `steps` lists, shuffled by the seed alone. No group is split between steps."""
    groups: dict[str, list[ScoredRollout]] = defaultdict(list)
    for each in rollouts:
        groups[each.group].append(each)
    names = sorted(groups)
    Random(f"steps {seed}").shuffle(names)
    chunks = [names[start : start + groups_per_step] for start in range(0, len(names), groups_per_step)]
    return [[each for name in chunk for each in groups[name]] for chunk in chunks[:steps]]
