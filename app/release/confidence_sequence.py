"""Confidence sequences: intervals that hold at all times, under continuous monitoring. Pure.

A confidence sequence for the mean of values in [0, 1] by an empirical Bernstein bound: Howard, Ramdas, McAuliffe
and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49 (2021),
theorem 4, with a boundary of a few straight lines, each with an equal part of the error.

The values need only lie in [0, 1]; the interval covers the mean of their conditional expectations. So traffic may
change over time, as long as both arms get the same share of it.
"""

from collections.abc import Sequence
from math import log

import msgspec
import numpy as np
from numpy.typing import NDArray

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


def is_gain(*found: Interval | None) -> bool:
    """Whether one of them is above 0."""
    return any(each is not None and each.low > 0 for each in found)


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
