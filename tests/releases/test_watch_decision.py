"""Decisions about a promoted release by its tasks and those of the release before."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest

from app.db.results import UNLABELLED
from app.releases.trials_store import WatchedTask
from app.releases.watch import WatchAction, WatchDecision, WatchRules, decide

START = datetime(2026, 1, 1, tzinfo=UTC)


def tasks(
    values: Sequence[float | None], kind: str = "mail", *, error: float = 0.0, turns: int = 3
) -> list[WatchedTask]:
    return [
        WatchedTask(kind, value, START + timedelta(seconds=place), error, turns)
        for place, value in enumerate(values)
    ]


def mixed(ones: int, zeros: int, times: int = 1) -> list[float]:
    """Evenly mixed scores."""
    total = ones + zeros
    return [float((place + 1) * ones // total - place * ones // total) for place in range(total)] * times


def drawn(
    rng: np.random.Generator, count: int, mix: dict[str, float], rates: dict[str, float]
) -> list[WatchedTask]:
    """Tasks of a random mix of scenarios, each with its own rate of success."""
    kinds = rng.choice(list(mix), count, p=list(mix.values()))
    made = [(str(kind), float(rng.random() < rates[kind])) for kind in kinds]
    return [
        WatchedTask(kind, score, START + timedelta(seconds=at), 0.0, 3) for at, (kind, score) in enumerate(made)
    ]


def test_a_drop_from_07_to_05_rolls_back_within_600_tasks() -> None:
    before, now = tasks(mixed(7, 3, 100)), tasks(mixed(5, 5, 60))
    assert decide(before, now[:100]).action is WatchAction.CONTINUE
    decision = decide(before, now)
    assert decision.action is WatchAction.ROLL_BACK
    assert decision.reason.startswith("lower reward: reward -0.2 [-0.")
    reward = decision.metrics["reward"]
    assert (reward.pairs, reward.now) == (600, 0.5)
    assert reward.before == pytest.approx(0.7)


@pytest.mark.slow
def test_without_a_change_it_is_hardly_ever_rolled_back_however_often_it_looks() -> None:
    """By simulation, at every tenth task, without any margin, while the mix of tasks changes to harder ones."""
    rates = {"easy": 0.9, "fair": 0.6, "hard": 0.2}
    first, later = {"easy": 0.6, "fair": 0.3, "hard": 0.1}, {"easy": 0.1, "fair": 0.4, "hard": 0.5}
    strict, rng = WatchRules(margin=0.0), np.random.default_rng(7)
    wrong, naive, runs = 0, 0, 60
    for _ in range(runs):
        before, now = drawn(rng, 600, first, rates), drawn(rng, 300, later, rates)
        looks = [decide(before, now[:count], strict) for count in range(20, 301, 10)]
        wrong += any(each.action is WatchAction.ROLL_BACK for each in looks)
        naive += any(_z(each) < -1.64 for each in looks)
    assert wrong / runs <= strict.alpha
    assert naive / runs > 2 * strict.alpha, "a test for one look is wrong far more often: the looks do matter"


def _z(decision: WatchDecision) -> float:
    """Of the mean difference, as if there were one look."""
    reward = decision.metrics["reward"]
    assert reward.before is not None
    assert reward.now is not None
    spread = reward.before * (1 - reward.before) + reward.now * (1 - reward.now)
    return float((reward.now - reward.before) / np.sqrt(spread / reward.pairs))


def test_harder_traffic_alone_is_no_loss() -> None:
    easy, hard = mixed(9, 1, 40), mixed(1, 9, 40)
    before = tasks(easy, "easy") + tasks(hard[:200], "hard")
    decision = decide(before, tasks(hard[:200], "hard") + tasks(easy[:20], "easy"))
    assert decision.action is WatchAction.CONTINUE
    assert decision.metrics["reward"].before == decision.metrics["reward"].now == pytest.approx(38 / 220)


def test_a_kind_that_vanished_and_other_traffic_are_named_and_do_not_count() -> None:
    before = tasks(mixed(5, 5, 40), "kept") + tasks([1.0] * 300, "vanished")
    now = tasks(mixed(5, 5, 40), "kept") + tasks([0.0] * 300, "new", error=1.0)
    decision = decide(before, now)
    assert decision.action is WatchAction.CONTINUE
    assert decision.not_counted.vanished == {"vanished": 300}
    assert decision.not_counted.other_traffic == {"new": 300}
    assert [each.scenario for each in decision.scenarios] == ["kept"]
    assert decision.metrics["errors"].pairs == 400


def test_a_check_that_always_gives_one_value_is_named_and_does_not_thin_out_a_loss() -> None:
    constant = tasks([1.0] * 2_000, "always true")
    before, now = tasks(mixed(7, 3, 60)), tasks(mixed(5, 5, 60))
    decision = decide(before + constant, now + constant)
    assert decision.not_counted.constant_checks == {"always true": 2_000}
    assert decision.metrics["reward"].pairs == 600
    assert decision.action is WatchAction.ROLL_BACK


def test_a_check_that_was_always_1_counts_once_it_gives_another_score() -> None:
    decision = decide(tasks([1.0] * 400), tasks([1.0] * 50 + [0.0] * 200))
    assert decision.not_counted.constant_checks == {}
    assert decision.metrics["reward"].pairs == 199, "not the first that differs: it would count because it does"
    assert decision.action is WatchAction.ROLL_BACK


def test_tasks_that_their_check_could_not_score_make_no_constant_check_informative() -> None:
    unscored = [
        msgspec.structs.replace(each, unscored=True) for each in tasks([0.0] * 20, "always true", error=1.0)
    ]
    constant = tasks([1.0] * 1_000, "always true") + unscored + tasks([1.0] * 1_000, "always true")
    decision = decide(tasks(mixed(7, 3, 60)) + constant, tasks(mixed(5, 5, 60)) + constant)
    assert decision.not_counted.constant_checks == {"always true": 2_020}
    assert decision.metrics["reward"].pairs == 600
    assert decision.action is WatchAction.ROLL_BACK


def test_each_earlier_task_is_used_once() -> None:
    decision = decide(tasks([1.0, 0.0, 0.0]), tasks([0.0] * 50))
    assert (decision.metrics["reward"].pairs, decision.not_counted.unmatched) == (3, 47)


def test_harder_traffic_without_a_scenario_is_no_loss_either() -> None:
    easy, hard = UNLABELLED + "1", UNLABELLED + "2"
    before = tasks(mixed(9, 1, 90), easy) + tasks(mixed(1, 9, 10), hard)
    now = tasks(mixed(1, 9, 70), hard) + tasks(mixed(9, 1, 30), easy)
    decision = decide(before, now)
    assert decision.action is WatchAction.CONTINUE
    assert decision.metrics["reward"].pairs == 400
    assert [each.scenario for each in decision.scenarios] == [hard, easy]


def test_instructions_that_only_one_release_had_are_one_sum_in_the_evidence() -> None:
    before = [each for number in range(30) for each in tasks([1.0], f"{UNLABELLED}{number}")]
    now = [each for number in range(25, 65) for each in tasks([0.0], f"{UNLABELLED}{number}")]
    decision = decide(before, now)
    assert decision.not_counted.vanished == {"(no scenario)": 25}
    assert decision.not_counted.other_traffic == {"(no scenario)": 35}
    assert (decision.metrics["reward"].pairs, decision.not_counted.unmatched) == (5, 0)


def test_more_errors_roll_back_whatever_the_rewards_say() -> None:
    decision = decide(tasks(mixed(2, 8, 60)), tasks(mixed(8, 2, 60), error=1.0))
    assert decision.action is WatchAction.ROLL_BACK
    assert decision.reason.startswith("more errors")


def test_more_turns_roll_back_unless_the_reward_is_higher() -> None:
    before, longer = tasks(mixed(5, 5, 60)), tasks(mixed(5, 5, 60), turns=6)
    assert decide(before, longer).reason.startswith("more turns: ")
    assert decide(before, tasks(mixed(5, 5, 60), turns=4)).action is WatchAction.CONTINUE
    assert decide(before, tasks(mixed(9, 1, 60), turns=6)).action is WatchAction.CONTINUE


def test_a_loss_within_the_margin_is_no_loss() -> None:
    before, now = tasks(mixed(7, 3, 60)), tasks(mixed(5, 5, 60))
    assert decide(before, now, WatchRules(margin=0.3)).action is WatchAction.CONTINUE


def test_it_is_kept_after_the_last_task_or_once_its_time_is_over() -> None:
    before, now = tasks(mixed(5, 5, 10)), tasks(mixed(5, 5, 5))
    assert decide(before, now, WatchRules(max_tasks=51)).action is WatchAction.CONTINUE
    assert decide(before, now, WatchRules(max_tasks=50)).action is WatchAction.KEEP
    assert decide(before, now, expired=True).action is WatchAction.KEEP
    nothing = decide([], [], expired=True)
    assert (nothing.action, nothing.reason[:18]) == (WatchAction.KEEP, "no task to compare")


def test_a_loss_seen_at_the_last_task_still_rolls_back() -> None:
    before, now = tasks(mixed(7, 3, 60)), tasks(mixed(5, 5, 60))
    assert decide(before, now, WatchRules(max_tasks=600), expired=True).action is WatchAction.ROLL_BACK


def test_rewards_are_in_the_order_of_scoring() -> None:
    late = WatchedTask("mail", 0.0, START + timedelta(days=1), 0.0, 3)
    early = WatchedTask("mail", 1.0, START, 0.0, 3)
    decision = decide(tasks([0.5]), [late, early])
    assert decision.metrics["reward"].now == 1.0
