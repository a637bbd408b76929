"""What becomes of a canary, by its figures."""

import re

import msgspec
import pytest

from app.release.canary_decision import Action, Rules, Sample, Verdict, decide

NONE = Sample([], [])
SAME = Sample([0.0] * 300, [0.0] * 300)


def judged(
    reward: Sample = NONE, errors: Sample = SAME, tokens: Sample = NONE, rules: Rules | None = None
) -> Verdict:
    return decide(reward, errors, NONE, tokens, rules)


def mixed(ones: int, zeros: int) -> list[float]:
    """So many of each, spread evenly."""
    total = ones + zeros
    return [float((place + 1) * ones // total - place * ones // total) for place in range(total)]


@pytest.mark.parametrize(
    ("canary", "active", "action", "words"),
    [
        (mixed(60, 240), mixed(240, 60), Action.REJECT, "it earns less: reward -0.6"),
        (mixed(240, 60), mixed(60, 240), Action.PROMOTE, r"it earns more: reward \+0.6"),
        (mixed(150, 150), mixed(150, 150), Action.WAIT, "at most 1700 more scored tasks"),
    ],
)
def test_rewards_decide(canary: list[float], active: list[float], action: Action, words: str) -> None:
    verdict = judged(Sample(canary, active))
    assert verdict.action is action
    assert re.search(words, verdict.reason)


def test_more_errors_reject_whatever_the_rewards_say() -> None:
    better = Sample(mixed(240, 60), mixed(60, 240))
    verdict = judged(better, errors=Sample(mixed(150, 150), mixed(15, 285)))
    assert verdict.action is Action.REJECT
    assert verdict.reason.startswith("more of its tasks go wrong")


def test_fewer_tokens_promote_only_where_a_loss_beyond_the_margin_is_ruled_out() -> None:
    fewer = Sample([100.0] * 2_000, [300.0] * 2_000, 1_000.0)
    certain, vague = Sample([1.0] * 1_500, [1.0] * 1_500), Sample(mixed(250, 250), mixed(250, 250))
    assert judged(certain, tokens=fewer).action is Action.PROMOTE
    assert "writes less" in judged(certain, tokens=fewer).reason
    assert judged(vague, tokens=fewer).action is Action.WAIT
    assert judged(certain, tokens=Sample(fewer.active, fewer.canary, 1_000.0)).action is Action.WAIT
    assert judged(certain).action is Action.WAIT


def test_without_scores_nothing_speaks_for_it_and_errors_still_speak_against_it() -> None:
    fewer = Sample([100.0] * 2_000, [300.0] * 2_000, 1_000.0)
    waits = judged(tokens=fewer)
    assert (waits.action, waits.reason[:20]) == (Action.WAIT, "no scores to compare")
    assert judged(errors=Sample([1.0] * 100, [0.0] * 900)).action is Action.REJECT


def test_after_so_many_scored_tasks_without_a_difference_it_is_given_up() -> None:
    alike = Sample(mixed(50, 50), mixed(50, 50))
    assert judged(alike, rules=Rules(tasks=101)).action is Action.WAIT
    given_up = judged(alike, rules=Rules(tasks=100))
    assert given_up.action is Action.REJECT
    assert given_up.reason.startswith("no difference is shown by 100 scored tasks")


def test_after_so_many_tasks_of_both_it_is_given_up_even_where_few_are_scored() -> None:
    alike, few = Sample([0.0] * 10, [0.0] * 90), Sample([1.0], [1.0])
    assert judged(few, errors=alike, rules=Rules(ended=101)).action is Action.WAIT
    for scored in (few, NONE):
        given_up = judged(scored, errors=alike, rules=Rules(ended=100))
        assert given_up.action is Action.REJECT
        assert given_up.reason.startswith("no difference is shown by the first 100 tasks of both")
    assert judged(errors=Sample([0.0] * 100, []), rules=Rules(ended=100)).action is Action.WAIT


def test_the_evidence_holds_each_arm_in_its_own_unit() -> None:
    found = msgspec.to_builtins(judged(tokens=Sample([100.0, 5_000.0], [300.0], 1_000.0)))
    tokens = found["figures"]["tokens"]
    assert tokens["tasks"] == {"canary": 2, "active": 1}
    assert tokens["canary"]["mean"] == 550.0, "what is above the ceiling counts as the ceiling"
    assert tokens["active"] == {"mean": 300.0, "low": 0.0, "high": 1_000.0}
    assert tokens["difference"]["mean"] == pytest.approx(250.0)
    assert found["figures"]["reward"]["difference"] is None


def test_all_figures_together_have_the_error_that_is_allowed() -> None:
    """A difference that one figure alone would show is not shown by one of four."""
    barely = Sample(mixed(70, 30), mixed(30, 70))
    alone = judged(barely, rules=Rules(alpha=0.2)).figures["reward"].difference
    among = judged(barely, rules=Rules(alpha=0.05)).figures["reward"].difference
    assert alone is not None
    assert among is not None
    assert alone.low > among.low
