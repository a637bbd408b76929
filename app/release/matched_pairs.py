"""Compares two releases that served at different times, by pairs of tasks of one scenario. Pure.

Each new value is matched with the next earlier one of its scenario, and each earlier one is used once. That a pair
counts is known before its values are, so the mean difference has an interval that holds at all times
(`confidence_sequence`), whatever the mix of scenarios and however it changes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from app.release.confidence_sequence import Interval, mean_interval
from app.release.constant_checks import ConstantChecks


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
