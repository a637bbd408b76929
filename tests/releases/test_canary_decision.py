"""Decisions about a canary by its metrics."""

import re
from datetime import timedelta

import msgspec
import numpy as np
import pytest

from app.releases.canary import CanaryAction, CanaryRules, MetricComparison, race, raised_percent
from app.releases.statistics import Interval
from app.releases.trials_store import CanaryShare, CanaryTask
from tests.support.trials import HALF, START, Arm, judged, trial

FEWER = Arm(0.95, tokens=100)


@pytest.mark.parametrize(
    ("canary", "active", "action", "words"),
    [
        (0.2, 0.8, CanaryAction.REJECT, "lower reward: reward -0.6"),
        (0.8, 0.2, CanaryAction.PROMOTE, r"higher reward: reward \+0.6"),
        (0.5, 0.5, CanaryAction.WAIT, "at most 1800 more scored tasks"),
    ],
)
def test_a_difference_in_rewards_decides(canary: float, active: float, action: CanaryAction, words: str) -> None:
    decision = judged(trial(Arm(canary), Arm(active), 200))
    assert decision.action is action
    assert re.search(words, decision.reason)


def test_more_errors_reject_whatever_the_rewards_say() -> None:
    decision = judged(trial(Arm(0.8, errors=0.5), Arm(0.2, errors=0.05), 300))
    assert decision.action is CanaryAction.REJECT
    assert decision.reason.startswith("more errors")


def test_fewer_tokens_promote_only_where_a_loss_beyond_the_margin_is_ruled_out() -> None:
    rules = CanaryRules(max_scored=9_999)
    decision = judged(trial(FEWER, Arm(0.95), 1_500), rules)
    assert decision.action is CanaryAction.PROMOTE
    assert "with fewer tokens" in decision.reason
    assert judged(trial(Arm(tokens=100), Arm(), 500), rules).action is CanaryAction.WAIT, "a vague reward"
    assert judged(trial(Arm(0.95), FEWER, 1_500), rules).action is CanaryAction.WAIT, "more tokens"


def test_a_check_that_is_always_true_does_not_promote_what_is_shorter() -> None:
    for score in (1.0, 0.0):
        waits = judged(trial(Arm(score, tokens=100), Arm(score), 1_500))
        assert waits.action is CanaryAction.WAIT
        assert f"every score is {score:g}, and such scores show no loss" in waits.reason


def test_without_scores_it_is_never_promoted_but_errors_still_reject_it() -> None:
    unknown = Arm(tokens=300, scored=False)
    waits = judged(trial(Arm(tokens=100, scored=False), unknown, 1_000))
    assert (waits.action, waits.reason[:20]) == (CanaryAction.WAIT, "no scores to compare")
    assert judged(trial(Arm(errors=1.0, scored=False), unknown, 100)).action is CanaryAction.REJECT


def test_a_trial_without_a_gate_ends_undecided_after_the_maximum_of_tasks() -> None:
    alike = trial(Arm(), Arm(), 100)
    assert judged(alike, CanaryRules(max_scored=101)).action is CanaryAction.WAIT
    for rules, words in (
        (CanaryRules(max_scored=100), "no difference in 100 scored tasks"),
        (CanaryRules(max_compared=200), "no difference in the first 200 tasks of both"),
    ):
        ended = judged(alike, rules)
        assert (ended.action, ended.reason[: len(words)]) == (CanaryAction.STOP, words)


PASSED = CanaryRules(expired="no difference in 14 days", passed_gate=True)


def test_at_the_end_one_that_passed_the_gate_is_promoted_if_a_loss_is_ruled_out() -> None:
    alike, some_loss, loss = (trial(Arm(rate), Arm(0.7), 100) for rate in (0.7, 0.62, 0.52))
    promoted = judged(alike, PASSED)
    assert (promoted.action, promoted.reason[:46]) == (
        CanaryAction.PROMOTE,
        "no loss beyond 0.2, and it passed the gate: no",
    )
    unclear = judged(some_loss, PASSED)
    assert unclear.action is CanaryAction.STOP
    assert re.match(r"a loss of 0\.[12]\d+ is not ruled out: no difference in 14 days", unclear.reason)
    assert judged(some_loss, msgspec.structs.replace(PASSED, loss=1.0)).action is CanaryAction.PROMOTE
    assert judged(loss, msgspec.structs.replace(PASSED, expired="")).action is CanaryAction.WAIT
    rejected = judged(loss, PASSED)
    assert (rejected.action, rejected.reason[:12]) == (CanaryAction.REJECT, "lower reward")
    assert rejected.metrics["reward"].at_the_end is not None


@pytest.mark.parametrize("passed", [True, False])
def test_at_the_end_a_gain_is_enough_to_be_promoted_unless_there_are_more_errors(passed: bool) -> None:
    rules = CanaryRules(expired="no difference in 14 days", passed_gate=passed, loss=0.01, possible_loss=0.03)
    gain = trial(Arm(0.88), Arm(0.7), 100)
    assert judged(gain, msgspec.structs.replace(rules, expired="")).action is CanaryAction.WAIT
    better = judged(gain, rules)
    assert (better.action, better.reason[:24], better.possible_loss) == (
        CanaryAction.PROMOTE,
        "higher reward in the end",
        0.0,
    )
    assert judged(trial(Arm(0.72), Arm(0.7), 100), rules).action is CanaryAction.STOP
    assert judged(trial(Arm(0.88, errors=0.12), Arm(0.7), 100), rules).action is CanaryAction.STOP


def test_few_tasks_neither_promote_nor_reject_it_and_without_any_the_gate_has_the_word() -> None:
    assert judged([], msgspec.structs.replace(PASSED, expired="")).action is CanaryAction.WAIT
    assert judged([], PASSED).action is CanaryAction.PROMOTE
    for score in (0.0, 1.0):
        assert judged(trial(Arm(score), Arm(1.0), 3), PASSED).action is CanaryAction.STOP


def test_it_is_a_candidate_again_if_the_gate_compared_it_with_other_weights() -> None:
    assert judged([], CanaryRules(expired="no difference in 14 days")).action is CanaryAction.STOP


def test_the_evidence_holds_each_arm_in_its_own_unit() -> None:
    tasks = [
        CanaryTask("mail", own, START, None, None, 0.0, 2, tokens)
        for own, tokens in ((True, 100), (True, 5_000), (False, 300))
    ]
    found = msgspec.to_builtins(judged(tasks))["metrics"]
    assert found["tokens"]["tasks"] == {"canary": 2, "baseline": 1}
    assert found["tokens"]["canary"] == 550.0, "what is above the ceiling counts as the ceiling"
    assert found["tokens"]["baseline"] == 300.0
    assert found["tokens"]["difference"]["high"] == pytest.approx(1_000.0, abs=1.0)
    assert found["reward"]["difference"] is None


def test_a_share_that_changed_with_the_traffic_is_no_difference() -> None:
    """Success is 0.9 while it serves a tenth and 0.1 while it serves half: of both, but not in their means."""
    shares = [CanaryShare(10.0, START), CanaryShare(50.0, START.replace(day=2))]
    rng = np.random.default_rng(0)
    tasks = [
        CanaryTask("mail", bool(rng.random() < share), at, float(rng.random() < rate), at, 0.0, 2, 300)
        for share, at, rate in ((0.1, START, 0.9), (0.5, START.replace(day=2), 0.1))
        for _ in range(600)
    ]
    found = judged(tasks, shares=shares).metrics["reward"]
    assert found.difference is not None
    assert found.canary is not None
    assert found.baseline is not None
    assert found.canary - found.baseline < -0.3
    assert found.difference.mean == pytest.approx(0, abs=0.12)


@pytest.mark.parametrize(
    ("high", "now", "raised"),
    [
        (1.0, 10.0, 10.0),  # nothing is known
        (0.7, 10.0, 10.0),  # less than half more
        (0.5, 10.0, 20.0),
        (0.25, 20.0, 40.0),
        (0.19, 40.0, 50.0),
        (-0.1, 10.0, 50.0),  # fewer errors
        (0.4, 50.0, 50.0),  # it is never lowered
        (0.1, 80.0, 80.0),  # a person gave it more
    ],
)
def test_its_share_rises_as_more_errors_are_ruled_out(high: float, now: float, raised: float) -> None:
    errors = MetricComparison(tasks={}, canary=0.0, baseline=0.0, difference=Interval(0.0, -1.0, high))
    assert raised_percent(errors, 10.0, now) == raised


def test_the_race_ends_with_what_is_decided_by_and_began_with_less() -> None:
    tasks = trial(Arm(success=0.9), Arm(success=0.4), 200)
    tasks = [each._replace(finished_at=each.started_at) for each in tasks]
    half, end = tasks[199].started_at, tasks[-1].started_at
    found = race(tasks, HALF, {}, [START - timedelta(minutes=1), half, end])
    decided = judged(tasks).metrics
    for name, (nothing, earlier, last) in found.items():
        assert nothing is None
        assert last == decided[name].difference
        assert earlier is not None
        assert last is not None
        assert earlier.high - earlier.low > last.high - last.low
