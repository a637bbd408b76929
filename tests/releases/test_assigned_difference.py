"""The difference of two releases that share the tasks: by hand, and simulated on thousands of trials."""

import numpy as np
import pytest

from app.releases.statistics import (
    AssignedValue,
    Effects,
    Interval,
    KindMean,
    at_any_time,
    at_the_end,
    effects,
    is_one_sided,
)

RATES = {"easy": 0.9, "hard": 0.3}


def drawn(rng: np.random.Generator, count: int, effect: float, first: float = 0.1) -> list[AssignedValue]:
    """Tasks of two kinds, the canary's share of which rises in the middle."""
    found = []
    for place in range(count):
        share = first if place < count / 2 else 0.5
        chance = rng.random(3).tolist()
        kind, own = "easy" if chance[0] < 0.5 else "hard", chance[1] < share
        found.append(AssignedValue(kind, own, share, float(chance[2] < RATES[kind] + effect * own)))
    return found


def test_each_task_adds_its_surprise_times_how_unlikely_its_release_was() -> None:
    values = [AssignedValue("a", True, 0.25, 1.0), AssignedValue("a", False, 0.25, 0.0)]
    found = effects(values, {"a": KindMean(4, 2.0)})
    first, second = (2 + 4 * 0.5) / 8, (3 + 4 * 3.5 / 6) / 9
    assert found.added.tolist() == pytest.approx([0.75 * (1 - first), -0.25 * (0 - second)])
    assert found.weights.tolist() == [0.1875, 0.1875]


def test_a_kind_without_past_is_expected_as_the_others_are() -> None:
    [added] = effects([AssignedValue("new", True, 0.5, 1.0)], {"old": KindMean(9, 9.0)}).added.tolist()
    assert added == pytest.approx(0.5 * (1 - 9.5 / 10))


@pytest.mark.parametrize("past", [{}, {"easy": KindMean(50, 0.0), "hard": KindMean(50, 50.0)}])
def test_the_mean_is_unbiased_even_if_the_past_misleads(past: dict[str, KindMean]) -> None:
    rng = np.random.default_rng(0)
    found = [effects(drawn(rng, 120, -0.2), past) for _ in range(1_500)]
    estimates = np.array([each.added.sum() / each.weights.sum() for each in found])
    assert estimates.mean() == pytest.approx(-0.2, abs=3 * estimates.std() / np.sqrt(len(found)))


def test_what_is_usual_of_a_kind_narrows_the_interval() -> None:
    values = drawn(np.random.default_rng(1), 400, 0.0)
    blind = [value._replace(kind="any") for value in values]
    past = {"easy": KindMean(100, 90.0), "hard": KindMean(100, 30.0)}
    known, unknown = at_the_end(effects(values, past), 0.05), at_the_end(effects(blind, {}), 0.05)
    assert known is not None
    assert unknown is not None
    assert known.high - known.low < 0.9 * (unknown.high - unknown.low)


@pytest.mark.slow
def test_each_bound_is_hardly_ever_wrong_however_often_one_looks() -> None:
    """At most 5 % of the trials may be wrong at some look; bounds for one look are wrong more often."""
    rng, alpha, trials = np.random.default_rng(2), 0.05, 400
    wrong = np.zeros(4)
    for _ in range(trials):
        whole = effects(drawn(rng, 200, -0.2), {})
        looks = [Effects(whole.added[:count], whole.weights[:count]) for count in range(20, 220, 20)]
        wrong[:2] += _misses([at_any_time(each, alpha) for each in looks])
        wrong[2:] += _misses([at_the_end(each, alpha) for each in looks])
    low, high, low_at_once, high_at_once = wrong / trials
    assert max(low, high) <= alpha
    assert min(low_at_once, high_at_once) > alpha


def _misses(looks: list[Interval | None]) -> tuple[bool, bool]:
    found = [each for each in looks if each is not None]
    return any(each.low > -0.2 for each in found), any(each.high < -0.2 for each in found)


@pytest.mark.parametrize("rate", [0.5, 0.97])
def test_one_look_at_the_end_is_rarely_wrong_with_few_tasks_and_with_many(rate: float) -> None:
    rng, alpha, trials = np.random.default_rng(3), 0.03, 1_000
    for count in (6, 40, 200):
        wrong = np.zeros(2)
        for _ in range(trials):
            own, values = rng.random(count) < 0.5, rng.random(count) < rate
            found = at_the_end(
                effects(
                    [AssignedValue("a", bool(a), 0.5, float(v)) for a, v in zip(own, values, strict=True)], {}
                ),
                alpha,
            )
            assert found is not None
            wrong += found.low > 0, found.high < 0
        assert wrong.max() / trials <= alpha + 2 * np.sqrt(alpha / trials)


def test_a_large_difference_shows_soon_and_none_without_chance() -> None:
    alternating = [AssignedValue("a", place % 2 == 0, 0.5, float(place % 2)) for place in range(80)]
    found = at_any_time(effects(alternating, {}), 0.01)
    assert found is not None
    assert found.low == -1.0
    assert found.high < -0.5
    assert at_any_time(effects([], {}), 0.01) is None
    assert at_any_time(effects([AssignedValue("a", True, 1.0, 1.0)], {}), 0.01) is None, "a share of 100 %"


def test_a_release_with_more_values_than_its_share_is_noticed() -> None:
    rng = np.random.default_rng(4)
    fair = sum(is_one_sided(drawn(rng, 200, 0.0), 0.05) for _ in range(300))
    assert fair <= 0.05 * 300
    assert is_one_sided([AssignedValue("a", place % 3 > 0, 0.5, 1.0) for place in range(300)], 0.01)
    assert not is_one_sided([AssignedValue("a", True, 1.0, 1.0)] * 300, 0.01), "it served all of them"
