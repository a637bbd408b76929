"""Whether training makes a policy use a skill with which tasks succeed less often than without.

python tests/bench/bench_skill_bonus.py [--runs 20]

By simulation, with the reward rules and advantages of training. A policy of one parameter, the log-odds of use,
is updated by the policy gradient, 100 times, from an even share. Each update has 48 chains of two, in groups of 8
as of rollouts, or in one group as of served tasks of a scenario: the first task wrote the skill, the second one
uses it or does without, which succeeds in 80 % of the cases.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.base import plugins
from tests.bench.results_file import write_results
from trainer.sage.advantages import center
from trainer.sage.reward import ChainStep, RewardRule, with_use_values

DIRECT = 0.8  # share of successes without the skill
_CASES = {  # rule, and size of the groups
    "skill": ("skill", 8),
    "skill_value, groups of 8": ("skill_value", 8),
    "skill_value, groups of 48": ("skill_value", 48),
}
_RATIOS = (0.25, 0.5, 0.6, 0.75, 1.0)  # of the successes with the skill to those without
_UPDATES, _CHAINS, _RATE = 100, 48, 1.0
_SKILL = frozenset({UUID(int=1)})
_MAKER = ChainStep(score=1.0, success=True, creditable=_SKILL)


class Choice(NamedTuple):
    """What the second task of a chain did."""

    group: int
    used: bool
    success: bool


def advantages(choices: Sequence[Choice], rule: RewardRule) -> list[float]:
    """How much better each second task did than its group, by the rewards of the rule."""
    groups = [choice.group for choice in choices]
    steps = [
        ChainStep(score=float(success), success=success, used=_SKILL if used else frozenset())
        for _, used, success in choices
    ]
    rewards = [rule([_MAKER, step])[1].total for step in with_use_values(steps, groups)]
    return center(rewards, groups)


def train(rng: np.random.Generator, reward: str, group: int, ratio: float) -> float:
    """The share of use at the end."""
    rule: RewardRule = plugins.load("sage.rewards", reward)
    log_odds = 0.0
    for _ in range(_UPDATES):
        use = float(1 / (1 + np.exp(-log_odds)))
        used = rng.random(_CHAINS) < use
        success = rng.random(_CHAINS) < np.where(used, DIRECT * ratio, DIRECT)
        choices = [Choice(at // group, bool(used[at]), bool(success[at])) for at in range(_CHAINS)]
        log_odds += _RATE * float(np.mean(np.array(advantages(choices, rule)) * (used - use)))
    return float(1 / (1 + np.exp(-log_odds)))


@click.command()
@click.option("--runs", default=20, show_default=True, help="of each case")
def main(runs: int) -> None:
    """Simulate training."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for ratio in _RATIOS:
        figures[f"{ratio:g}"] = by_case = {}
        print(f"use succeeds {ratio:g} times as often: share of use, from 50 %, to")
        for name, (reward, group) in _CASES.items():
            rng = np.random.default_rng(1)
            shares = [round(train(rng, reward, group, ratio), 3) for _ in range(runs)]
            by_case[name] = {"median": statistics.median(shares), "least": min(shares), "most": max(shares)}
            print(f"  {name}: {statistics.median(shares):.0%} [{min(shares):.0%}, {max(shares):.0%}]")
    write_results("skill_bonus", {"runs": runs, "share_of_use_by_ratio": figures})


if __name__ == "__main__":
    main()
