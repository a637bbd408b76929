"""Paired statistics of a release on tasks that another release has done. Pure."""

from collections.abc import Sequence

import msgspec
import numpy as np

from app.release.confidence_sequence import Floats, Interval

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
