"""The difference between two releases that share the tasks by chance, from their values. Pure.

A task adds (a - p)(v - m): `a` is 1 on the canary and 0 otherwise, `p` the probability of 1 when it was
assigned, `v` its value and `m` what was expected of its kind before. Its mean is p(1 - p) times the difference,
whatever `m` is: so a poor expectation costs precision, not truth (Robinson, "Root-N-consistent semiparametric
regression", Econometrica 56, 1988). The share may be changed between tasks, by what is known before, and so may
the traffic.

Assumed: that a task counts does not depend on which release had it. `is_one_sided` finds out when it does.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from app.release.confidence_sequence import Floats, Interval, boundary

_BETS = 0.9 * 0.5 ** np.arange(6)  # for differences that show after ten tasks, and after ten thousand
_HALVINGS = 14  # of the range of a bound: to 0.0001
_BLOCK = 64  # factors from 0.1 to 1.9 that are multiplied before their logarithm is taken
_PRIOR = 4.0  # tasks of a kind that weigh as much as all other kinds
_SQUARE = 1.0  # added to the variance at the end: values that are all the same prove nothing when they are few


class AssignedValue(NamedTuple):
    """A value from 0 to 1 of a task that chance gave to the canary or to the other release."""

    kind: str
    on_canary: bool
    share: float  # the canary's, from 0 to 1, when the task was assigned
    value: float
    known_at: datetime | None = None  # when the value became known
    unscored: bool = False  # a reward of 0 because the check gave no score


class KindMean(NamedTuple):
    """The values of earlier tasks of one kind."""

    tasks: int
    total: float


class Effects(NamedTuple):
    """By task: what it adds (N), and p(1 - p), the weight of the difference in it (N)."""

    added: Floats
    weights: Floats


def effects(values: Iterable[AssignedValue], usual: Mapping[str, KindMean]) -> Effects:
    """In the order of `values`. `usual` is from before the first of them; the expectations learn from each."""
    tasks, totals = defaultdict[str, float](float), defaultdict[str, float](float)
    for kind, mean in usual.items():
        tasks[kind], totals[kind] = mean.tasks, mean.total
    all_tasks, all_total = sum(tasks.values()) + 1.0, sum(totals.values()) + 0.5
    added, weights = [], []
    for kind, on_canary, share, value, *_ in values:
        expected = (totals[kind] + _PRIOR * all_total / all_tasks) / (tasks[kind] + _PRIOR)
        added.append((on_canary - share) * (value - expected))
        weights.append(share * (1 - share))
        tasks[kind] += 1
        totals[kind] += value
        all_tasks, all_total = all_tasks + 1, all_total + value
    return Effects(np.array(added), np.array(weights))


def at_any_time(found: Effects, alpha: float) -> Interval | None:
    """The canary's mean minus the other's. Each bound is ever wrong with probability <= `alpha`.

    By betting against each difference that is too small, or too large (Waudby-Smith and Ramdas, "Estimating
    means of bounded random variables by betting", JRSS B 86, 2024). Exact for any number of tasks, if the
    difference stays the same. None where nothing was left to chance.
    """
    if not found.weights.sum():
        return None
    low = _lower_bound(found, alpha)
    high = -_lower_bound(Effects(-found.added, found.weights), alpha)
    return Interval(min(max(_mean(found), low), high), low, high)


def at_the_end(found: Effects, alpha: float) -> Interval | None:
    """As `at_any_time`, but for one look at a time that was fixed before: much narrower. By a normal
    distribution.
    """
    weight = float(found.weights.sum())
    if not weight:
        return None
    mean = _mean(found)
    radius = NormalDist().inv_cdf(1 - alpha) * sqrt(float((found.added**2).sum()) + _SQUARE) / weight
    return Interval(mean, max(-1.0, mean - radius), min(1.0, mean + radius))


def is_one_sided(values: Sequence[AssignedValue], alpha: float) -> bool:
    """Whether more or fewer of them are the canary's than chance explains; ever wrong with probability <=
    `alpha`.
    """
    surplus = np.array([each.on_canary - each.share for each in values])
    return bool(abs(surplus.sum()) > boundary((surplus**2).sum(), alpha / 2))


def _mean(found: Effects) -> float:
    return float(np.clip(found.added.sum() / found.weights.sum(), -1.0, 1.0))


def _lower_bound(found: Effects, alpha: float) -> float:
    """The smallest difference that is not refuted: the larger one is, the less is won by betting against it."""
    low, high, enough = -1.0, 1.0, log(len(_BETS) / alpha)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        won = _won(found.added - middle * found.weights)
        low, high = (middle, high) if won >= enough else (low, middle)
    return low


def _won(gains: Floats) -> float:
    """The logarithm of what all bets together have won, each having begun with 1. (N), from -1 to 1."""
    blocks = np.zeros(-(-gains.size // _BLOCK) * _BLOCK)
    blocks[: gains.size] = gains
    factors = (1 + _BETS[:, None] * blocks).reshape(len(_BETS), -1, _BLOCK).prod(axis=2)
    return float(np.logaddexp.reduce(np.log(factors).sum(axis=1)))
