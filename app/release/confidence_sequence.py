"""Intervals that hold at every moment at once: look after every task, stop when you like. Pure.

A confidence sequence for the mean of values in [0, 1] by an empirical Bernstein bound: Howard, Ramdas, McAuliffe
and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49 (2021),
theorem 4, with a boundary made of a few straight lines, each of which gets its part of the error.

It asks little of the values: each lies in [0, 1], and what is covered is the mean of their expectations given the
ones before. So traffic that changes over time breaks nothing, as long as both arms get their share of all of it.
"""

from collections.abc import Sequence
from math import log

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# One of these lines is near the best for any sum of up to 100,000 values.
_SLOPES: Floats = 0.9 * 0.5 ** np.arange(8, dtype=np.float64)
_COSTS: Floats = -np.log1p(-_SLOPES) - _SLOPES  # psi_E of the paper


class Interval(msgspec.Struct, frozen=True):
    """A mean, and where the true one lies."""

    mean: float
    low: float
    high: float

    def scaled(self, scale: float) -> "Interval":
        return Interval(self.mean * scale, self.low * scale, self.high * scale)


def mean_interval(values: Sequence[float], alpha: float) -> Interval | None:
    """Of values in [0, 1], in the order they came. Over all moments together it misses with probability <= alpha.

    None where there are no values: nothing is known then.
    """
    seen = np.asarray(values, dtype=np.float64)
    if not seen.size:
        return None
    radius = float(reach(variation(seen)[-1], alpha / 2)) / seen.size
    mean = float(seen.mean())
    return Interval(mean, max(0.0, mean - radius), min(1.0, mean + radius))


def difference(first: Sequence[float], second: Sequence[float], alpha: float) -> Interval | None:
    """First mean minus second, each arm given half the error. None where one of them has no values."""
    one, other = mean_interval(first, alpha / 2), mean_interval(second, alpha / 2)
    if one is None or other is None:
        return None
    return Interval(one.mean - other.mean, one.low - other.high, one.high - other.low)


def variation(values: Floats) -> Floats:
    """(..., T) to (..., T): after each value, the squares of all so far around what was foretold of them.

    Foretold is the mean of the values before, and of one half, which stands for knowing nothing.
    """
    before = np.cumsum(values, axis=-1) - values
    foretold = (before + 0.5) / np.arange(1, values.shape[-1] + 1)
    return np.cumsum((values - foretold) ** 2, axis=-1)


def reach(varied: Floats | float, alpha: float) -> Floats:
    """How far above its expectation a sum of so much variation ever gets, but with probability alpha."""
    lines = (log(len(_SLOPES) / alpha) + np.asarray(varied)[..., None] * _COSTS) / _SLOPES
    return np.asarray(lines.min(axis=-1))
