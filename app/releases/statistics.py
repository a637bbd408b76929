"""The statistics by which releases are compared. Nothing here decides, and nothing reads the database.

Intervals that hold at all times (`Interval`, `mean_interval`), also for tasks that chance gave to one of two
releases (`effects`) and for pairs of tasks of one scenario that were done at different times (`match`);
narrower ones for a person who looks once; and checks that give each task the same score, which show nothing
about a release.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from math import inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.db.results import ValueSums

Floats = NDArray[np.float64]

# For any sum of up to 100,000 values, one of these lines is nearly optimal.
_SLOPES: Floats = 0.9 * 0.5 ** np.arange(8, dtype=np.float64)
_COSTS: Floats = -np.log1p(-_SLOPES) - _SLOPES  # psi_E of the paper


class Interval(msgspec.Struct, frozen=True):
    """A mean with its confidence bounds."""

    mean: float
    low: float
    high: float

    def scaled(self, scale: float) -> "Interval":
        return Interval(self.mean * scale, self.low * scale, self.high * scale)

    def __str__(self) -> str:
        return f"{self.mean:+.3g} [{self.low:+.3g}, {self.high:+.3g}]"


def mean_interval(values: Sequence[float], alpha: float) -> Interval | None:
    """The interval of the mean of values in [0, 1], in order of arrival; ever wrong with probability <= alpha.

    None if there are no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return None
    radius = float(boundary(variation(array)[-1], alpha / 2)) / array.size
    mean = float(array.mean())
    return Interval(mean, max(0.0, mean - radius), min(1.0, mean + radius))


def difference(first: Sequence[float], second: Sequence[float], alpha: float) -> Interval | None:
    """First mean minus second, with half of alpha for each arm. None if one of them has no values."""
    one, other = mean_interval(first, alpha / 2), mean_interval(second, alpha / 2)
    if one is None or other is None:
        return None
    return Interval(one.mean - other.mean, one.low - other.high, one.high - other.low)


def variation(values: Floats) -> Floats:
    """(..., T) to (..., T): cumulative squared deviations of the values from their predictions.

    The prediction is the mean of one half, as the prior, and the values before.
    """
    before = np.cumsum(values, axis=-1) - values
    predicted = (before + 0.5) / np.arange(1, values.shape[-1] + 1)
    return np.cumsum((values - predicted) ** 2, axis=-1)


def boundary(variation_so_far: Floats | float, alpha: float) -> Floats:
    """The deviation that a sum with this variation exceeds at any time with probability at most alpha."""
    lines = (log(len(_SLOPES) / alpha) + np.asarray(variation_so_far)[..., None] * _COSTS) / _SLOPES
    return np.asarray(lines.min(axis=-1))


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


_FEWEST = 10  # equal scores that make a check constant


class ConstantChecks:
    """The kinds that had at least 10 scores so far, all of them the same.

    >>> checks = ConstantChecks()
    >>> checks.add("mail", 1.0, 9)
    >>> "mail" in checks
    False
    >>> checks.add("mail", 1.0)
    >>> "mail" in checks
    True
    >>> checks.add("mail", 0.5)
    >>> "mail" in checks
    False
    """

    def __init__(self) -> None:
        self._same: dict[str, tuple[float | None, int]] = {}

    def __contains__(self, kind: object) -> bool:
        score, number = self._same.get(str(kind), (None, 0))
        return score is not None and number >= _FEWEST

    def add(self, kind: str, score: float | None, number: int = 1) -> None:
        """So many scores of a kind; None if they differ from each other."""
        same, before = self._same.get(kind, (score, 0))
        self._same[kind] = (score if score == same else None, before + number)


class LabelledValue(NamedTuple):
    """One value of a task."""

    scenario: str
    value: float
    unscored: bool = False  # a reward of 0 because the check gave no score


class MatchedPair(NamedTuple):
    """The values of an earlier and of a new task of one scenario."""

    scenario: str
    before: float
    now: float
    unscored: bool = False  # of the new task


class PairedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the pairs, and the interval of their difference (new minus before). Null without pairs."""

    pairs: int
    before: float | None = None
    now: float | None = None
    difference: Interval | None = None


def match(before: Iterable[LabelledValue], now: Iterable[LabelledValue]) -> Iterator[MatchedPair]:
    """In the order of `now`; values without a partner are left out.

    >>> earlier = [LabelledValue("mail", 1.0), LabelledValue("buy", 0.5)]
    >>> list(match(earlier, [LabelledValue("buy", 0.0), LabelledValue("buy", 1.0)]))
    [MatchedPair(scenario='buy', before=0.5, now=0.0, unscored=False)]
    """
    earlier: dict[str, list[float]] = defaultdict(list)
    for scenario, value, _ in before:
        earlier[scenario].append(value)
    unused = {scenario: iter(values) for scenario, values in earlier.items()}
    for scenario, value, unscored in now:
        other = next(unused.get(scenario, iter(())), None)
        if other is not None:
            yield MatchedPair(scenario, other, value, unscored)


def informative(pairs: Iterable[MatchedPair], checks: ConstantChecks) -> Iterator[MatchedPair]:
    """Leave out the pairs of scenarios whose scores were all the same, until a new one differs: the pair after
    that is the first that counts. `checks` know the earlier scores, and learn the new ones.
    """
    for pair in pairs:
        if pair.scenario not in checks:
            yield pair
        if not pair.unscored:
            checks.add(pair.scenario, pair.now)


def compare(pairs: Sequence[MatchedPair], alpha: float, ceiling: float = 1.0) -> PairedDifference:
    """For values from 0 to `ceiling`. The interval is ever wrong with probability <= alpha."""
    shifted = mean_interval([((pair.now - pair.before) / ceiling + 1) / 2 for pair in pairs], alpha)
    if shifted is None:
        return PairedDifference(pairs=0)
    middle, low, high = ((2 * each - 1) * ceiling for each in (shifted.mean, shifted.low, shifted.high))
    return PairedDifference(
        pairs=len(pairs),
        before=mean([pair.before for pair in pairs]),
        now=mean([pair.now for pair in pairs]),
        difference=Interval(middle, low, high),
    )


def mean(values: Sequence[float]) -> float | None:
    """None without values."""
    return sum(values) / len(values) if values else None


_WIDTH = NormalDist().inv_cdf(0.975)


def sums_of(values: Iterable[float]) -> ValueSums:
    """
    >>> sums_of([1, 3])
    ValueSums(number=2, total=4, squares=10)
    """
    known = list(values)
    return ValueSums(len(known), sum(known), sum(value * value for value in known))


def one_look_difference(first: ValueSums, second: ValueSums, most: float = inf) -> Interval | None:
    """First mean minus second with a 95 % interval, which ends at `most`. None if one of them has no values.

    To each side's squared deviations, the larger mean square is added once: a few values that are all the same
    prove nothing.

    >>> found = one_look_difference(sums_of([1.0, 1.0, 1.0]), sums_of([0.0, 0.0]))
    >>> found.mean, round(found.low, 2), round(found.high, 2)
    (1.0, -0.18, 2.18)
    """
    if not first.number or not second.number:
        return None
    floor = max(each.squares / each.number for each in (first, second))
    variance = sum((_deviation(each) + floor) / each.number**2 for each in (first, second))
    mean, radius = first.total / first.number - second.total / second.number, _WIDTH * sqrt(variance)
    return Interval(mean, max(-most, mean - radius), min(most, mean + radius))


def _deviation(sums: ValueSums) -> float:
    """The sum of squared distances from the mean."""
    return max(0.0, sums.squares - sums.total**2 / sums.number)


_RESAMPLES = 2_000
_MIN_PAIRS = 2  # one pair has no variance


class PairedComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Means of both, and their mean difference with a 95 % bootstrap interval over tasks."""

    tasks: int
    before: float
    shadow: float
    difference: Interval | None  #: shadow minus before; None for fewer than two pairs


def compare_pairs(pairs: Sequence[tuple[float, float]]) -> PairedComparison | None:
    """Compare (before, shadow) values. None if there are none. Deterministic.

    >>> compare_pairs([(1.0, 0.0), (1.0, 0.0)])
    PairedComparison(tasks=2, before=1.0, shadow=0.0, difference=Interval(mean=-1.0, low=-1.0, high=-1.0))
    """
    if not pairs:
        return None
    before, shadow = np.array(pairs, dtype=np.float64).T
    return PairedComparison(
        tasks=len(pairs),
        before=float(before.mean()),
        shadow=float(shadow.mean()),
        difference=_interval(shadow - before) if len(pairs) >= _MIN_PAIRS else None,
    )


def _interval(differences: Floats) -> Interval:
    drawn = np.random.default_rng(0).choice(differences, (_RESAMPLES, differences.size)).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(differences.mean()), float(low), float(high))
