"""Rewards of the tasks of a chain: SAGE's skill-integrated reward, and the two it is compared with.

SAGE (arXiv 2512.17102, "Skill-integrated Reward"), for a chain of two tasks q1, q2 with outcomes r1, r2:

    R1 = r1 + 1[r1 = 1] 1[r2 = 1] used(q2 | q1)      q1 made a skill that a successful q2 used
    R2 = r2 +             1[r2 = 1] used(q2 | q1)      q2 succeeded and used a skill that q1 made

A task that ended without code earns -1 instead. Every rule has the signature of the entry-point group
`sage.rewards`: from the tasks of one chain, in order, to one reward per task.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from trainer.sage.chains import ChainStep

NO_CODE = -1.0  # the reward of a task that ended because the policy wrote no code, whatever its score


class Reward(msgspec.Struct, frozen=True):
    """R = score + bonus."""

    score: float  # r, or NO_CODE
    bonus: float = 0.0

    @property
    def total(self) -> float:
        return self.score + self.bonus


RewardRule = Callable[[Sequence[ChainStep]], list[Reward]]


def skill_integrated(chain: Sequence[ChainStep]) -> list[Reward]:
    """A bonus of 1 for each success that used a skill made earlier in the chain, or made one that was so used.

    Beyond the paper: a use counts only if the sandbox executed it and it returned. No task earns more than one
    bonus.
    """
    return _with_bonus(chain, _making_and_using(chain, [step.used for step in chain]))


def skill_integrated_by_name(chain: Sequence[ChainStep]) -> list[Reward]:
    """`skill_integrated` as the paper's code has it: a skill counts as used if its name is called, even if
    the call failed.
    """
    return _with_bonus(chain, _making_and_using(chain, [step.named for step in chain]))


def chain_success(chain: Sequence[ChainStep]) -> list[Reward]:
    """The chain-based reward of the paper's ablation: a bonus for every task if all tasks of the chain
    succeeded.
    """
    every = len(chain) > 1 and all(step.success for step in chain)
    return _with_bonus(chain, [every] * len(chain))


def outcome(chain: Sequence[ChainStep]) -> list[Reward]:
    """The outcome-based reward of the paper's ablation: R = r."""
    return _with_bonus(chain, [False] * len(chain))


def _making_and_using(chain: Sequence[ChainStep], uses: Sequence[frozenset[UUID]]) -> list[bool]:
    """Which successes made or used a skill that passed from one task of the chain to a later, successful one."""
    passed_on = [
        (maker, user)
        for user in range(len(chain))
        for maker in range(user)
        if chain[user].success and chain[maker].made & uses[user]
    ]
    ends = {position for pair in passed_on for position in pair}
    return [step.success and position in ends for position, step in enumerate(chain)]


def _with_bonus(chain: Sequence[ChainStep], earned: Sequence[bool]) -> list[Reward]:
    return [
        Reward(NO_CODE) if step.no_code else Reward(step.score, float(bonus))
        for step, bonus in zip(chain, earned, strict=True)
    ]
