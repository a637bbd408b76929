"""What a release did with tasks that another had done before it: figures of pairs. Pure."""

from collections.abc import Sequence

import msgspec
import numpy as np

from app.release.confidence_sequence import Floats, Interval

_RESAMPLES = 2_000
_LEAST = 2  # of one pair nothing varies


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """Means of both, and of their differences with a 95 % interval, by bootstrap over tasks."""

    tasks: int
    before: float
    shadow: float
    difference: Interval | None  # shadow minus before; None for too few to tell


def compare(pairs: Sequence[tuple[float, float]]) -> Paired | None:
    """Of (before, shadow). None where there are none. The same pairs always give the same interval.

    >>> compare([(1.0, 0.0), (1.0, 0.0)])
    Paired(tasks=2, before=1.0, shadow=0.0, difference=Interval(mean=-1.0, low=-1.0, high=-1.0))
    """
    if not pairs:
        return None
    before, shadow = np.array(pairs, dtype=np.float64).T
    return Paired(
        tasks=len(pairs),
        before=float(before.mean()),
        shadow=float(shadow.mean()),
        difference=_interval(shadow - before) if len(pairs) >= _LEAST else None,
    )


def _interval(differences: Floats) -> Interval:
    drawn = np.random.default_rng(0).choice(differences, (_RESAMPLES, differences.size)).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(differences.mean()), float(low), float(high))
