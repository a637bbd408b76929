"""Differences between two policies on the same scenarios, and means over seeds, worked out by hand."""

import pytest

from app.base.errors import InvalidError
from tests.support.task_results import chains, result
from trainer.evaluation.metrics import Estimate, compare, compare_runs, measure, measure_runs, metrics_table

HALF = [number % 2 == 0 for number in range(100)]


def test_a_difference_is_candidate_minus_incumbent() -> None:
    found = compare(chains([True, True, True, False], tokens=60), chains([False, True, True, False], turns=5))
    assert (found.sgc.mean, found.tokens.mean, found.turns.mean) == (25, -40, -1)
    assert found.tgc.mean == pytest.approx(100 / 12)
    assert (found.scenarios, found.gained, found.lost) == (4, 1, 0)


def test_pairing_removes_the_variance_of_the_scenarios() -> None:
    """Alone each half-solved evaluation is uncertain by 10 points; both solved the same, so the difference is
    0.
    """
    assert measure(chains(HALF)).sgc.high > 58
    assert compare(chains(HALF), chains(HALF)).sgc == Estimate(0, 0, 0)


def test_an_interval_of_a_difference_is_as_wide_as_the_discordant_pairs_make_it() -> None:
    """10 gained and 10 lost of 100: the spread of one pair is sqrt(.2), so 1.96 * sqrt(.2 / 100) is 8.8 points."""
    candidate = [number < 50 for number in range(100)]
    incumbent = [10 <= number < 60 for number in range(100)]
    found = compare(chains(candidate), chains(incumbent))
    assert (found.gained, found.lost, found.sgc.mean) == (10, 10, 0)
    assert found.sgc.low == pytest.approx(-8.8, abs=1.2)
    assert found.sgc.high == pytest.approx(8.8, abs=1.2)


def test_the_order_of_scenarios_does_not_matter_to_the_pairs() -> None:
    candidate, incumbent = chains(HALF), chains(HALF)[::-1]
    assert compare(candidate, incumbent).sgc == Estimate(0, 0, 0)


def test_other_scenarios_or_fewer_tasks_are_refused_by_name() -> None:
    with pytest.raises(InvalidError, match="they differ in 2 scenarios, such as s1; evaluate both with the"):
        compare(chains([True, True]), [*chains([True]), result("x"), result("x"), result("x")])
    with pytest.raises(InvalidError, match="they differ in 1 scenarios, such as s1"):
        compare(chains([True, True]), chains([True, True])[:-1])


def test_seeds_weigh_the_same_however_many_tasks_they_have() -> None:
    found = measure_runs([chains([True]), chains([False, False, False])])
    assert (found.sgc.mean, found.seeds, found.tasks, found.scenarios) == (50, 2, 12, 3)


def test_the_interval_includes_the_variance_of_the_seeds() -> None:
    """Five seeds at 0, 25, 50, 75 and 100 %, the same in every scenario: only the seeds make up the width.

    The mean's standard error is sqrt(1562.5 / 5) = 17.7.
    """
    runs = [[result(str(number), success=number % 4 < level) for number in range(400)] for level in range(5)]
    found = measure_runs(runs).tgc
    assert found.mean == 50
    assert 50 - found.low == pytest.approx(1.96 * 17.7, abs=5)
    assert found.high - 50 == pytest.approx(1.96 * 17.7, abs=5)


def test_more_seeds_do_not_remove_the_variance_of_the_scenarios() -> None:
    """Ten seeds that agree on every scenario are no more certain than one."""
    alone, agreed = measure(chains(HALF)).sgc, measure_runs([chains(HALF)] * 10).sgc
    assert agreed.high - agreed.low == pytest.approx(alone.high - alone.low, abs=1.0)


def test_seeds_of_different_scenarios_are_measured_on_all_of_them_with_no_interval_too_narrow() -> None:
    runs = [[result(f"{seed} {number}", success=number % 2 == 0) for number in range(50)] for seed in range(4)]
    found, pooled = measure_runs(runs), measure([each for run in runs for each in run])
    assert found.scenarios == pooled.scenarios == 200
    assert found.tgc.mean == pooled.tgc.mean == 50
    assert 1 <= (50 - found.tgc.low) / (50 - pooled.tgc.low) < 1.6


def test_a_difference_over_seeds_pairs_them_in_their_order() -> None:
    low, high = chains([False] * 20), chains([True] * 20)
    paired = compare_runs([high, low], [high, low])
    assert paired.sgc == Estimate(0, 0, 0)
    assert compare_runs([low, high], [high, low]).gained == 20
    with pytest.raises(InvalidError, match="1 seeds cannot be paired with 2"):
        compare_runs([low], [low, high])


def test_the_library_counts_once_a_chain_and_skills_used_once_each() -> None:
    first = [result("a", library=2), result("a", library=2, offered=1, used=1, names=("f",))]
    second = [result("b", library=1), result("b", library=1, offered=2, used=2, names=("f", "g"))]
    found = measure([*first, *second, result("c", library=0)])
    assert found.library_size is not None
    assert found.library_size.mean == 1  # 2, 1 and 0
    assert found.distinct_used is not None
    assert found.distinct_used.mean == 1.5  # f; f and g. no skill was offered in c
    assert measure([result("a")]).library_size is None
    assert measure([result("a")]).distinct_used is None


def test_the_table_names_the_number_of_seeds() -> None:
    head = metrics_table({"on": measure_runs([chains([True]), chains([False])])}).splitlines()[0]
    assert head == "| 2 seeds, 1 scenarios, 6 tasks | on |"
