"""Confidence sequences: worked out by hand, and simulated on thousands of streams."""

from math import log

import numpy as np
import pytest

from app.releases.statistics import Floats, Interval, boundary, difference, mean_interval, variation

ALPHA = 0.05
LINES = 8  # of the boundary


def test_the_variation_is_around_the_predictions() -> None:
    predicted = [1 / 2, 3 / 4, 1 / 2]  # of 1, 0, 1: the mean of one half and the values before
    assert predicted[2] == (1 / 2 + 1 + 0) / 3
    squares = [1 / 4, 9 / 16, 1 / 4]
    assert variation(np.array([1.0, 0.0, 1.0])).tolist() == pytest.approx(np.cumsum(squares).tolist())


def test_the_boundary_is_that_of_the_best_line() -> None:
    def line(slope: float, variation_so_far: float) -> float:
        return (log(LINES / ALPHA) + (-log(1 - slope) - slope) * variation_so_far) / slope

    assert float(boundary(0.0, ALPHA)) == pytest.approx(line(0.9, 0.0))
    assert float(boundary(13 / 16, ALPHA)) == pytest.approx(6.90530, abs=1e-4)
    assert float(boundary(1_000.0, ALPHA)) == pytest.approx(line(0.1125, 1_000.0))


def test_an_interval_lies_around_the_mean_and_within_zero_and_one() -> None:
    values = [1.0, 0.0] * 500
    found = mean_interval(values, ALPHA)
    assert found is not None
    radius = float(boundary(variation(np.array(values))[-1], ALPHA / 2)) / 1_000
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - radius, 0.5 + radius))
    assert 0.05 < radius < 0.06
    assert mean_interval([1.0, 0.0], ALPHA) == Interval(0.5, 0.0, 1.0)
    assert mean_interval([], ALPHA) is None


def test_each_arm_of_a_difference_has_half_the_error() -> None:
    good, bad = [1.0] * 300, [0.0] * 100
    one, other = mean_interval(good, ALPHA / 2), mean_interval(bad, ALPHA / 2)
    found = difference(good, bad, ALPHA)
    assert one is not None
    assert other is not None
    assert found == Interval(1.0, one.low - other.high, one.high - other.low)
    assert difference([], bad, ALPHA) is None


def test_continuous_monitoring_keeps_the_false_alarm_rate() -> None:
    rng = np.random.default_rng(0)
    runs, tasks = 2_000, 400
    for mean in (0.5, 0.9):
        streams = (rng.random((2, runs, tasks)) < mean).astype(np.float64)
        alarms = told_apart(streams[0], streams[1], ALPHA).any(axis=1)
        assert alarms.mean() <= ALPHA
        glances = np.abs(means(streams[0]) - means(streams[1])) > 1.96 * np.sqrt(2 * mean * (1 - mean)) / root(
            tasks
        )
        assert glances[:, 20:].any(axis=1).mean() > 4 * ALPHA, "an interval for one look is wrong far more often"


def test_traffic_that_becomes_harder_for_both_is_no_difference() -> None:
    rng = np.random.default_rng(1)
    chances = np.linspace(0.95, 0.3, 500)
    streams = (rng.random((2, 1_000, 500)) < chances).astype(np.float64)
    assert told_apart(streams[0], streams[1], ALPHA).any(axis=1).mean() <= ALPHA


def test_a_clear_difference_is_found_within_three_hundred_tasks_of_each() -> None:
    rng = np.random.default_rng(2)
    better = (rng.random((500, 300)) < 0.9).astype(np.float64)
    worse = (rng.random((500, 300)) < 0.6).astype(np.float64)
    assert told_apart(better, worse, ALPHA)[:, -1].mean() > 0.95


def told_apart(first: Floats, second: Floats, alpha: float) -> np.ndarray:
    """(R, T): whether zero is outside the interval of the difference after each number of tasks"""
    radii = [boundary(variation(arm), alpha / 4) / np.arange(1, arm.shape[1] + 1) for arm in (first, second)]
    return np.asarray(np.abs(means(first) - means(second)) > sum(radii))


def means(streams: Floats) -> Floats:
    return np.asarray(np.cumsum(streams, axis=1) / np.arange(1, streams.shape[1] + 1))


def root(tasks: int) -> Floats:
    return np.asarray(np.sqrt(np.arange(1, tasks + 1)))
