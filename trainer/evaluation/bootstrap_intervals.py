"""95 % intervals by bootstrap over whole scenarios, and over seeds where there are several.

Results of one scenario's tasks are correlated, so scenarios are resampled, not tasks. Where several seeds were
evaluated on the same scenarios, one resample of scenarios is used for all seeds: easy scenarios are easy for each.
Of K seeds K - 1 are drawn, which makes the variance of the mean unbiased (Rao and Wu 1988); drawing K of a handful
understates it. Resampling both ways counts the variance of single answers more than once (Owen 2007): intervals
are too wide, by about a tenth where all seeds share 200 scenarios, by up to a half where each has its own.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_TAIL = 0.025  # on each side of an interval


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval, by bootstrap over scenarios."""

    mean: float
    low: float
    high: float


class Resamples:
    """The R resamples of S scenarios and K seeds, shared by all metrics of an evaluation."""

    def __init__(self, scenarios: int, seeds: int, *, seed: int, resamples: int) -> None:
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, scenarios, (resamples, scenarios))
        self._counts = np.stack([np.bincount(each, minlength=scenarios) for each in drawn])  # (R, S)
        self._seeds = rng.integers(0, seeds, (resamples, max(1, seeds - 1)))  # (R, K - 1)

    def estimate(self, table: Floats) -> Estimate | None:
        """The ratio of sums, averaged over seeds; None where no task counts.

        `table` (K, S, 2) holds numerators and denominators, 0 / 0 where a seed has no result for a scenario.
        """
        mean = _mean(_ratios(table.sum(1)))
        if np.isnan(mean):
            return None
        return _estimate(mean, self._resampled(table))

    def difference(self, first: Floats, second: Floats) -> Estimate:
        """`first` minus `second`: tables of the same seeds and scenarios, each with a ratio."""
        mean = _mean(_ratios(first.sum(1))) - _mean(_ratios(second.sum(1)))
        return _estimate(mean, self._resampled(first) - self._resampled(second))

    def _resampled(self, table: Floats) -> Floats:
        """(R,), nan where no task of a resample counts."""
        sums = np.einsum("rs,ksc->rkc", self._counts, table, optimize=True)
        return _means(np.take_along_axis(_ratios(sums), self._seeds, axis=1))


def exact_where_flat(estimate: Estimate, scenarios: int) -> Estimate:
    """A share in percent of so many scenarios. At 0 or 100, where the bootstrap has no width, it gets the exact
    interval over scenarios (Clopper and Pearson 1934).

    >>> exact_where_flat(Estimate(0, 0, 0), 8)
    Estimate(mean=0, low=0, high=36.9)
    """
    bound = round(100 * (1 - _TAIL ** (1 / scenarios)), 1)
    match estimate.mean:
        case 0:
            return msgspec.structs.replace(estimate, high=bound)
        case 100:
            return msgspec.structs.replace(estimate, low=100 - bound)
    return estimate


def tabulate(runs: Sequence[dict[str, tuple[float, float]]], scenarios: Sequence[str], scale: float) -> Floats:
    """One numerator and denominator per seed and scenario, (K, S, 2); 0 / 0 where a seed has no result for it."""
    cells = [[run.get(name, (0.0, 0.0)) for name in scenarios] for run in runs]
    return np.array(cells, dtype=np.float64) * (scale, 1.0)


def _ratios(sums: Floats) -> Floats:
    """(..., 2) to (...), nan for a denominator of 0."""
    below = np.where(sums[..., 1] > 0, sums[..., 1], np.nan)
    return np.asarray(sums[..., 0] / below)


def _means(values: Floats) -> Floats:
    """(R, K) to (R,), ignoring nan; nan where all values are."""
    known = ~np.isnan(values)
    count = known.sum(1)
    return np.where(count > 0, np.where(known, values, 0).sum(1) / np.maximum(count, 1), np.nan)


def _mean(values: Floats) -> float:
    return float(_means(values[None])[0])


def _estimate(mean: float, resampled: Floats) -> Estimate:
    low, high = np.quantile(resampled[~np.isnan(resampled)], [_TAIL, 1 - _TAIL])
    return Estimate(mean, float(low), float(high))
