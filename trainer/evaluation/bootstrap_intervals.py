"""95 % intervals by bootstrap over whole scenarios, and over seeds where there are several. Pure.

Tasks of one scenario stand or fall together, so scenarios are what is drawn. Where several seeds sat the same
scenarios, one draw of scenarios holds for all of them: an easy exam is easy for every seed. Of K seeds K - 1 are
drawn, which gives the variance of the mean without bias (Rao and Wu 1988); drawing K of a handful understates it.
Drawing both ways counts the chance in single answers more than once (Owen 2007): intervals err on the wide side,
by about a tenth where all seeds sat the same 200 scenarios, by up to a half where each sat its own.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval, by bootstrap over scenarios."""

    mean: float
    low: float
    high: float


class Draws:
    """The resamples that every figure of one evaluation shares: R of S scenarios and K seeds."""

    def __init__(self, scenarios: int, seeds: int, *, seed: int, resamples: int) -> None:
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, scenarios, (resamples, scenarios))
        self._counts = np.stack([np.bincount(each, minlength=scenarios) for each in drawn])  # (R, S)
        self._seeds = rng.integers(0, seeds, (resamples, max(1, seeds - 1)))  # (R, K - 1)

    def estimate(self, table: Floats) -> Estimate | None:
        """Of the ratio of sums, mean over seeds. `table` (K, S, 2): numerator and denominator; 0 / 0 where absent.

        None where no task qualified.
        """
        mean = _mean(_ratios(table.sum(1)))
        if np.isnan(mean):
            return None
        return _estimate(mean, self._resampled(table))

    def difference(self, first: Floats, second: Floats) -> Estimate:
        """First minus second, both of the same seeds and scenarios, in tables as above. Each must have a ratio."""
        mean = _mean(_ratios(first.sum(1))) - _mean(_ratios(second.sum(1)))
        return _estimate(mean, self._resampled(first) - self._resampled(second))

    def _resampled(self, table: Floats) -> Floats:
        """(R,), nan where a resample holds no task that qualifies."""
        sums = np.einsum("rs,ksc->rkc", self._counts, table, optimize=True)
        return _means(np.take_along_axis(_ratios(sums), self._seeds, axis=1))


def tabulate(runs: Sequence[dict[str, tuple[float, float]]], scenarios: Sequence[str], scale: float) -> Floats:
    """What each seed measured of each scenario, as (K, S, 2); nothing where a seed did not sit a scenario."""
    cells = [[run.get(name, (0.0, 0.0)) for name in scenarios] for run in runs]
    return np.array(cells, dtype=np.float64) * (scale, 1.0)


def _ratios(sums: Floats) -> Floats:
    """(..., 2) to (...), nan for a denominator of 0."""
    below = np.where(sums[..., 1] > 0, sums[..., 1], np.nan)
    return np.asarray(sums[..., 0] / below)


def _means(values: Floats) -> Floats:
    """(R, K) to (R,) over what is not nan; nan where all is."""
    known = ~np.isnan(values)
    count = known.sum(1)
    return np.where(count > 0, np.where(known, values, 0).sum(1) / np.maximum(count, 1), np.nan)


def _mean(values: Floats) -> float:
    return float(_means(values[None])[0])


def _estimate(mean: float, resampled: Floats) -> Estimate:
    low, high = np.quantile(resampled[~np.isnan(resampled)], [0.025, 0.975])
    return Estimate(mean, float(low), float(high))
