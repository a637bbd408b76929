"""Metrics worked out by hand, and intervals that take scenarios, not tasks, as independent."""

import pytest

from tests.support.task_results import result
from trainer.evaluation.metrics import Estimate, PolicyMetrics, measure, metrics_table


def example() -> PolicyMetrics:
    """Three scenarios of three tasks: `a` is solved, `b` in part, `c` fails."""
    return measure(
        [
            result("a", success=True, turns=3, tokens=90, wrote=1),
            result("b", success=True, turns=4, tokens=110, wrote=2),
            result("c", turns=8, tokens=400),
            result("a", success=True, turns=2, tokens=40, offered=1, used=1),
            result("a", success=True, turns=2, tokens=40, offered=2, used=2, wrote=1),
            result("b", turns=5, tokens=160, offered=1, used=1),
            result("b", turns=5, tokens=160, offered=3),
            result("c", turns=8, tokens=400),
            result("c", turns=8, tokens=400, offered=1),
        ]
    )


def mean(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def test_the_metrics_are_those_worked_out_by_hand() -> None:
    found = example()
    assert (found.tasks, found.scenarios) == (9, 3)
    assert found.tgc.mean == pytest.approx(100 * 4 / 9)
    assert found.sgc.mean == pytest.approx(100 * 1 / 3)
    assert found.turns.mean == pytest.approx(45 / 9)
    assert found.tokens.mean == pytest.approx(1800 / 9)
    assert mean(found.skill_usage) == pytest.approx(100 * 3 / 5)
    assert mean(found.success_skill_usage) == pytest.approx(100 * 2 / 3)
    assert mean(found.write_rate) == pytest.approx(100 * 2 / 6)


def test_each_mean_lies_in_its_interval() -> None:
    found = example()
    for name in ("tgc", "sgc", "turns", "tokens", "skill_usage", "success_skill_usage", "write_rate"):
        estimate = getattr(found, name)
        assert estimate.low <= estimate.mean <= estimate.high
        assert estimate.low < estimate.high


def test_intervals_are_over_scenarios_not_over_tasks() -> None:
    """Fifty tasks each in two scenarios are two observations, not a hundred."""
    found = measure([result("a", success=True)] * 50 + [result("b")] * 50)
    assert found.tgc == Estimate(50, 0, 100)


def test_an_interval_is_as_wide_as_that_of_the_binomial_distribution() -> None:
    """100 scenarios of one task, half of them solved: 1.96 * sqrt(0.25 / 100) is 9.8 %."""
    found = measure([result(str(number), success=number % 2 == 0) for number in range(100)])
    assert found.tgc.low == pytest.approx(50 - 9.8, abs=1.2)
    assert found.tgc.high == pytest.approx(50 + 9.8, abs=1.2)


def test_one_scenario_or_unanimous_ones_have_an_interval_of_no_width() -> None:
    assert measure([result("a", success=True), result("a")]).tgc == Estimate(50, 50, 50)
    assert measure([result(name, success=True) for name in "abc"]).sgc == Estimate(100, 100, 100)


def test_a_share_of_no_tasks_is_none_and_not_zero() -> None:
    none_offered = measure([result("a"), result("b")])
    assert none_offered.skill_usage is None
    assert none_offered.success_skill_usage is None
    assert none_offered.write_rate == Estimate(0, 0, 0)
    all_used = measure([result("a", offered=1, used=1)])
    assert all_used.write_rate is None
    assert all_used.success_skill_usage == Estimate(0, 0, 0)


def test_a_share_is_measured_on_the_scenarios_that_contribute_to_it() -> None:
    found = measure([result("a", offered=1, used=1), *(result(str(number)) for number in range(5))])
    assert found.skill_usage == Estimate(100, 100, 100)


def test_the_order_of_tasks_changes_nothing_and_a_seed_repeats_the_interval() -> None:
    results = [result(f"s{number % 7}", success=number % 3 == 0, turns=number) for number in range(30)]
    assert measure(results) == measure(results)
    turned = sorted(results, key=lambda each: int(each.scenario[1:]))
    assert measure(turned) == measure(results)


def test_no_results_have_no_metrics() -> None:
    with pytest.raises(ValueError, match="no results"):
        measure([])


def test_a_share_of_nothing_has_the_exact_interval_of_its_scenarios() -> None:
    lines = metrics_table({"base": measure([result(name) for name in "abcd"])}).splitlines()
    assert lines[2:4] == ["| TGC, % | 0.0 [0.0, 60.2] |", "| SGC, % | 0.0 [0.0, 60.2] |"]  # 0.4 ** 4 = 0.025


def test_the_table_shows_a_mean_with_its_interval_and_a_dash_for_none() -> None:
    lines = metrics_table({"on": example(), "off": measure([result("a", success=True)])}).splitlines()
    assert lines[:2] == ["| 3 scenarios, 9 tasks | on | off |", "|---|---|---|"]
    assert lines[2].startswith("| TGC, % | 44.4 [0.0, 100.0] | 100.0 [2.5, 100.0] |")
    assert lines[6].endswith("| - |")
    assert len(lines) == 11
