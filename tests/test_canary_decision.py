"""Decisions about a canary by its metrics."""

import re

import msgspec
import pytest

from app.release.canary_decision import ArmSamples, CanaryAction, CanaryDecision, CanaryRules, decide

NONE = ArmSamples([], [])
SAME = ArmSamples([0.0] * 300, [0.0] * 300)


def judged(
    reward: ArmSamples = NONE,
    errors: ArmSamples = SAME,
    tokens: ArmSamples = NONE,
    rules: CanaryRules | None = None,
) -> CanaryDecision:
    return decide(reward, errors, NONE, tokens, rules)


def mixed(ones: int, zeros: int) -> list[float]:
    """Evenly mixed values."""
    total = ones + zeros
    return [float((place + 1) * ones // total - place * ones // total) for place in range(total)]


@pytest.mark.parametrize(
    ("canary", "active", "action", "words"),
    [
        (mixed(60, 240), mixed(240, 60), CanaryAction.REJECT, "lower reward: reward -0.6"),
        (mixed(240, 60), mixed(60, 240), CanaryAction.PROMOTE, r"higher reward: reward \+0.6"),
        (mixed(150, 150), mixed(150, 150), CanaryAction.WAIT, "at most 1700 more scored tasks"),
    ],
)
def test_a_difference_in_rewards_decides(
    canary: list[float], active: list[float], action: CanaryAction, words: str
) -> None:
    decision = judged(ArmSamples(canary, active))
    assert decision.action is action
    assert re.search(words, decision.reason)


def test_more_errors_reject_whatever_the_rewards_say() -> None:
    better = ArmSamples(mixed(240, 60), mixed(60, 240))
    decision = judged(better, errors=ArmSamples(mixed(150, 150), mixed(15, 285)))
    assert decision.action is CanaryAction.REJECT
    assert decision.reason.startswith("more errors")


def test_fewer_tokens_promote_only_where_a_loss_beyond_the_margin_is_ruled_out() -> None:
    fewer = ArmSamples([100.0] * 2_000, [300.0] * 2_000, 1_000.0)
    certain = ArmSamples(mixed(1_490, 10), mixed(1_490, 10))
    vague = ArmSamples(mixed(250, 250), mixed(250, 250))
    assert judged(certain, tokens=fewer).action is CanaryAction.PROMOTE
    assert "with fewer tokens" in judged(certain, tokens=fewer).reason
    assert judged(vague, tokens=fewer).action is CanaryAction.WAIT
    assert judged(certain, tokens=ArmSamples(fewer.baseline, fewer.canary, 1_000.0)).action is CanaryAction.WAIT
    assert judged(certain).action is CanaryAction.WAIT


def test_a_check_that_is_always_true_does_not_promote_what_is_shorter() -> None:
    fewer = ArmSamples([100.0] * 2_000, [300.0] * 2_000, 1_000.0)
    for score in (1.0, 0.0):
        waits = judged(ArmSamples([score] * 1_500, [score] * 1_500), tokens=fewer)
        assert waits.action is CanaryAction.WAIT
        assert f"every score is {score:g}, and such scores show no loss" in waits.reason


def test_without_scores_it_is_never_promoted_but_errors_still_reject_it() -> None:
    fewer = ArmSamples([100.0] * 2_000, [300.0] * 2_000, 1_000.0)
    waits = judged(tokens=fewer)
    assert (waits.action, waits.reason[:20]) == (CanaryAction.WAIT, "no scores to compare")
    assert judged(errors=ArmSamples([1.0] * 100, [0.0] * 900)).action is CanaryAction.REJECT


def test_it_is_rejected_after_the_maximum_of_scored_tasks() -> None:
    alike = ArmSamples(mixed(50, 50), mixed(50, 50))
    assert judged(alike, rules=CanaryRules(max_scored=101)).action is CanaryAction.WAIT
    given_up = judged(alike, rules=CanaryRules(max_scored=100))
    assert given_up.action is CanaryAction.REJECT
    assert given_up.reason.startswith("no difference in 100 scored tasks")


def test_it_is_rejected_after_the_maximum_of_tasks_even_if_few_are_scored() -> None:
    alike, few = ArmSamples([0.0] * 10, [0.0] * 90), ArmSamples([1.0], [1.0])
    assert judged(few, errors=alike, rules=CanaryRules(max_compared=101)).action is CanaryAction.WAIT
    for scored in (few, NONE):
        given_up = judged(scored, errors=alike, rules=CanaryRules(max_compared=100))
        assert given_up.action is CanaryAction.REJECT
        assert given_up.reason.startswith("no difference in the first 100 tasks of both")
    assert (
        judged(errors=ArmSamples([0.0] * 100, []), rules=CanaryRules(max_compared=100)).action is CanaryAction.WAIT
    )


PASSED = CanaryRules(max_scored=100, passed_gate=True)
OVER = CanaryRules(expired="no difference in 3 days", passed_gate=True)


def test_at_the_end_of_its_trial_one_that_passed_the_gate_is_promoted_unless_it_looks_worse() -> None:
    alike, lower = ArmSamples(mixed(50, 50), mixed(50, 50)), ArmSamples(mixed(40, 60), mixed(50, 50))
    promoted = judged(alike, rules=PASSED)
    assert (promoted.action, promoted.reason[:52]) == (
        CanaryAction.PROMOTE,
        "no difference in 100 scored tasks, and it passed the",
    )
    rejected = judged(lower, rules=PASSED)
    assert (rejected.action, "but worse on average" in rejected.reason) == (CanaryAction.REJECT, True)


def test_without_tasks_its_trial_ends_when_its_time_is_over() -> None:
    none = ArmSamples([], [])
    assert judged(errors=none, rules=CanaryRules(passed_gate=True)).action is CanaryAction.WAIT
    assert judged(errors=none, rules=OVER).action is CanaryAction.PROMOTE
    broken = ArmSamples([1.0, 1.0, 0.0], [0.0] * 9)
    assert judged(errors=broken, rules=OVER).action is CanaryAction.REJECT, (
        "two of three failed, no matter how few"
    )


def test_when_its_time_is_over_one_that_the_gate_compared_with_other_weights_is_a_candidate_again() -> None:
    assert judged(rules=CanaryRules(expired="no difference in 3 days")).action is CanaryAction.STOP


def test_the_evidence_holds_each_arm_in_its_own_unit() -> None:
    found = msgspec.to_builtins(judged(tokens=ArmSamples([100.0, 5_000.0], [300.0], 1_000.0)))
    tokens = found["metrics"]["tokens"]
    assert tokens["tasks"] == {"canary": 2, "baseline": 1}
    assert tokens["canary"]["mean"] == 550.0, "what is above the ceiling counts as the ceiling"
    assert tokens["baseline"] == {"mean": 300.0, "low": 0.0, "high": 1_000.0}
    assert tokens["difference"]["mean"] == pytest.approx(250.0)
    assert found["metrics"]["reward"]["difference"] is None


def test_all_metrics_together_keep_alpha() -> None:
    """A difference significant for one metric alone is not significant for one of four."""
    barely = ArmSamples(mixed(70, 30), mixed(30, 70))
    alone = judged(barely, rules=CanaryRules(alpha=0.2)).metrics["reward"].difference
    among = judged(barely, rules=CanaryRules(alpha=0.05)).metrics["reward"].difference
    assert alone is not None
    assert among is not None
    assert alone.low > among.low
