"""The score interval: by hand, and by the exact probability of every outcome."""

from math import comb, log, sqrt

import pytest

from app.base.run_settings import RunSettings
from tests.support.every_row import every_row
from trainer.evaluation.gate_decision import GateRules, difference_lower_bound

MARGIN = GateRules().margin / 100


def chance(scenarios: int, gains: float, losses: float) -> float:
    """The probability that a loss beyond the margin is ruled out, if these shares are truly gained and lost."""
    total = 0.0
    for gained in range(scenarios + 1):
        for lost in range(scenarios + 1 - gained):
            ways = comb(scenarios, gained) * comb(scenarios - gained, lost)
            same = scenarios - gained - lost
            probability = ways * gains**gained * losses**lost * (1 - gains - losses) ** same
            if probability > 1e-9 and difference_lower_bound(gained, lost, scenarios) >= -MARGIN:
                total += probability
    return total


def test_without_gain_and_loss_the_bound_is_that_worked_out_by_hand() -> None:
    """n m = z sqrt(n m (1 - m)), so m = z² / (n + z²): of 60 scenarios 3.84 / 63.84."""
    assert difference_lower_bound(0, 0, 60) == pytest.approx(-0.06017, abs=1e-5)


def test_at_the_bound_the_score_statistic_is_the_quantile_of_the_normal_distribution() -> None:
    """1 gained and 4 lost of 60; the likeliest share is found by trying many."""
    bound = difference_lower_bound(1, 4, 60)

    def likelihood(losses: float) -> float:
        return log(losses + bound) + 4 * log(losses) + 55 * log(1 - 2 * losses - bound)

    losses = max((-bound + step / 20_000 for step in range(1, 8_000)), key=likelihood)
    assert (1 - 4 - 60 * bound) / sqrt(60 * (2 * losses + bound * (1 - bound))) == pytest.approx(1.96, abs=1e-3)


def test_many_scenarios_leave_the_normal_interval() -> None:
    """50 gained and 50 lost of 10,000: 1.96 * sqrt(0.01 / 10000)."""
    assert difference_lower_bound(50, 50, 10_000) == pytest.approx(-0.00196, abs=5e-5)


def test_extreme_counts_give_extreme_bounds() -> None:
    assert difference_lower_bound(0, 60, 60) == -1.0
    assert 0.8 < difference_lower_bound(60, 0, 60) < 1.0


def test_a_loss_of_the_margin_is_ruled_out_no_more_often_than_documented() -> None:
    with every_row() as row:
        for gains in [0.0, 0.02, 0.05, 0.1, 0.2]:
            for scenarios in [60, 100, 200]:
                with row(gains, scenarios):
                    assert chance(scenarios, gains, gains + MARGIN) <= 0.026


@pytest.mark.parametrize(("differ", "expected"), [(0.05, 0.79), (0.1, 0.56)])
def test_an_equal_candidate_passes_as_often_as_documented(differ: float, expected: float) -> None:
    scenarios = RunSettings().gate_scenarios
    assert chance(scenarios, differ / 2, differ / 2) == pytest.approx(expected, abs=0.005)
