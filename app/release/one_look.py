"""The difference of two means for a person who looks once, by a normal distribution. Pure.

Its interval is much narrower than that of `confidence_sequence`, which holds however often it is looked at.
Nothing is decided by it.
"""

from collections.abc import Iterable
from math import inf, sqrt
from statistics import NormalDist

from app.db.results import ValueSums
from app.release.confidence_sequence import Interval

_WIDTH = NormalDist().inv_cdf(0.975)


def sums_of(values: Iterable[float]) -> ValueSums:
    """
    >>> sums_of([1, 3])
    ValueSums(number=2, total=4, squares=10)
    """
    known = list(values)
    return ValueSums(len(known), sum(known), sum(value * value for value in known))


def difference(first: ValueSums, second: ValueSums, most: float = inf) -> Interval | None:
    """First mean minus second with a 95 % interval, which ends at `most`. None if one of them has no values.

    To each side's squared deviations, the larger mean square is added once: a few values that are all the same
    prove nothing.

    >>> found = difference(sums_of([1.0, 1.0, 1.0]), sums_of([0.0, 0.0]))
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
