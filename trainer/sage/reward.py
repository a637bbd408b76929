"""Rewards of the tasks of a chain: SAGE's skill-integrated reward in three variants, and two baselines.

SAGE (arXiv 2512.17102, "Skill-integrated Reward"), for a chain of two tasks q1, q2 with outcomes r1, r2:

    R1 = r1 + 1[r1 = 1] 1[r2 = 1] used(q2 | q1)      q1 made a skill that a successful q2 used
    R2 = r2 +             1[r2 = 1] used(q2 | q1)      q2 succeeded and used a skill that q1 made

1[...] is 1 if the condition holds and 0 otherwise; used(q2 | q1) is 1 if q2 used a skill that q1 made. A task that
ended without code earns -1 instead. Every rule has the signature of the entry-point group `sage.rewards`: it takes
the tasks of one chain, in order, and returns one reward per task.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

NO_CODE = -1.0  # the reward of a task that ended because the policy wrote no code, regardless of its score


class ChainStep(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a chain, as the reward sees it."""

    score: float  # r, of the verifier, in [0, 1]
    success: bool  # r = 1
    no_code: bool = False  # it ended because the policy wrote no code
    creditable: frozenset[UUID] = frozenset()  # skills it made that can earn a bonus: no wrappers of a single API
    used: frozenset[UUID] = frozenset()  # offered skills that ran, called an API and returned, as the host saw
    called_by_name: frozenset[UUID] = frozenset()  # offered skills that its code calls and does not redefine
    known: bool = True  # False: nobody can tell whether it succeeded, so it is compared with nothing
    use_value: float | None = None  # of using skills, among the tasks it is compared with; see `with_use_values`


class Reward(msgspec.Struct, frozen=True):
    """R = score + bonus."""

    score: float  # r, or NO_CODE
    bonus: float = 0.0

    @property
    def total(self) -> float:
        return self.score + self.bonus


RewardRule = Callable[[Sequence[ChainStep]], list[Reward]]


def skill_integrated(chain: Sequence[ChainStep]) -> list[Reward]:
    """A bonus of 1 for each success that used a skill made earlier in the chain, or that created such a skill.

    Beyond the paper: a use counts only if the host saw a call of the skill return, and an API call in it. No task
    earns more than one bonus.
    """
    return _with_bonus(chain, _making_and_using(chain, [step.used for step in chain]))


def skill_integrated_by_name(chain: Sequence[ChainStep]) -> list[Reward]:
    """`skill_integrated` as in the paper's code: a skill counts as used if it is called by name, even if the call
    failed.
    """
    return _with_bonus(chain, _making_and_using(chain, [step.called_by_name for step in chain]))


def skill_value(chain: Sequence[ChainStep]) -> list[Reward]:
    """`skill_integrated`, but no use is paid where it did worse than doing without.

    With a bonus of 1, a use pays as soon as it succeeds more than half as often as its alternative: such a policy
    learns to call skills that harm it. Here a use earns nothing, for its task and for the maker of the skill, if
    its `use_value` is negative.
    """
    paid = [step.used if step.use_value is None or step.use_value >= 0 else frozenset[UUID]() for step in chain]
    return _with_bonus(chain, _making_and_using(chain, paid))


def with_use_values(
    steps: Sequence[ChainStep], kinds: Sequence[Hashable], shown: Mapping[Any, float] = MappingProxyType({})
) -> list[ChainStep]:
    """The steps, each with the value of using skills in tasks of its kind: the mean score of those that used any,
    minus the mean score of those that used none. None where either is missing. Steps that are not known are left
    out.

    `kinds` is what makes two tasks comparable, such as group and position. `shown` are values of kinds that come
    from a trial, in which chance decided who does without: they take precedence.
    """
    scores: dict[tuple[Hashable, bool], list[float]] = defaultdict(list)
    for step, kind in zip(steps, kinds, strict=True):
        if step.known:
            scores[kind, bool(step.used)].append(step.score)
    values = {
        kind: fmean(scores[kind, True]) - fmean(scores[kind, False])
        for kind in set(kinds)
        if (kind, True) in scores and (kind, False) in scores
    } | dict(shown)
    return [
        msgspec.structs.replace(step, use_value=values.get(kind)) for step, kind in zip(steps, kinds, strict=True)
    ]


def chain_success(chain: Sequence[ChainStep]) -> list[Reward]:
    """The chain-based reward of the paper's ablation: a bonus for every task of a chain of two or more if all of
    them succeeded.
    """
    all_succeeded = len(chain) > 1 and all(step.success for step in chain)
    return _with_bonus(chain, [all_succeeded] * len(chain))


def outcome(chain: Sequence[ChainStep]) -> list[Reward]:
    """The outcome-based reward of the paper's ablation: R = r."""
    return _with_bonus(chain, [False] * len(chain))


def known_rewards(rule: RewardRule, chain: Sequence[ChainStep]) -> list[Reward | None]:
    """The rewards of a chain. None if the result of a task is not known, or of one on which its bonus depends."""
    rewards = rule(chain)
    if all(step.known for step in chain):
        return list(rewards)
    at_best = [step if step.known else msgspec.structs.replace(step, score=1.0, success=True) for step in chain]
    return [
        reward if step.known and reward == best else None
        for step, reward, best in zip(chain, rewards, rule(at_best), strict=True)
    ]


def _making_and_using(chain: Sequence[ChainStep], uses: Sequence[frozenset[UUID]]) -> list[bool]:
    """Which successes made or used a skill that passed from one task of the chain to a later, successful one."""
    passed_on = [
        (maker, user)
        for user in range(len(chain))
        for maker in range(user)
        if chain[user].success and chain[maker].creditable & uses[user]
    ]
    ends = {position for pair in passed_on for position in pair}
    return [step.success and position in ends for position, step in enumerate(chain)]


def _with_bonus(chain: Sequence[ChainStep], earned: Sequence[bool]) -> list[Reward]:
    return [
        Reward(NO_CODE) if step.no_code else Reward(step.score, float(bonus))
        for step, bonus in zip(chain, earned, strict=True)
    ]
