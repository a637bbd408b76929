"""The gate's decision in every case that can come up."""

import pytest

from app.errors import InvalidError
from tests.results import chains, result
from trainer.evaluation.decision import Decision, Rules, decide

SOLVED, FAILED = [True] * 60, [False] * 60
MANY = [True] * 200


def judged(candidate: list[bool], incumbent: list[bool], *, tokens: int = 100) -> Decision:
    return decide(chains(candidate, tokens=tokens), chains(incumbent))


def test_a_clear_gain_promotes() -> None:
    found = judged([True] * 50 + [False] * 10, [True] * 30 + [False] * 30)
    assert found.promote
    assert found.reason.startswith("it solves more scenarios: SGC +33.3 [")
    assert found.figures["difference"]["gained"] == 20


def test_a_gain_that_may_be_chance_does_not() -> None:
    """Five gained and three lost of 60."""
    found = judged([True] * 5 + [False] * 3 + SOLVED[:52], [False] * 5 + [True] * 3 + SOLVED[:52])
    assert not found.promote
    assert found.figures["difference"]["sgc"]["mean"] > 0


def test_two_that_are_the_same_in_everything_are_no_reason_to_change() -> None:
    found = judged(MANY, MANY)
    assert not found.promote
    assert found.reason.startswith("neither more scenarios nor fewer tokens are shown: SGC +0.0 [+0.0, +0.0]")


def test_the_same_with_fewer_tokens_promotes() -> None:
    found = judged(MANY, MANY, tokens=90)
    assert found.promote
    assert found.reason.startswith("it is not worse by more than 5 points of SGC and writes less: ")
    assert "at worst -1.9, tokens -10.0 [-10.0, -10.0] per task, on 200 scenarios" in found.reason


def test_more_tokens_for_the_same_do_not() -> None:
    assert not judged(MANY, MANY, tokens=110).promote


def test_fewer_tokens_that_may_be_chance_do_not() -> None:
    """Half the scenarios 100 shorter, nearly half of them 99 longer."""
    candidate = [result(f"s{number}", tokens=0 if number % 2 else 199) for number in range(200)]
    incumbent = [result(f"s{number}", tokens=100) for number in range(200)]
    found = decide(candidate, incumbent)
    assert found.figures["difference"]["tokens"]["mean"] < 0
    assert not found.promote


@pytest.mark.parametrize(("lost", "promote"), [(3, True), (4, False)])
def test_some_scenarios_less_of_many_are_within_the_margin(lost: int, promote: bool) -> None:
    found = judged([False] * lost + MANY[lost:], MANY, tokens=50)
    assert found.promote is promote
    assert found.figures["difference"]["lost"] == lost
    assert found.figures["sgc_worst"] == pytest.approx(-4.3 if promote else -5.03, abs=0.02)


@pytest.mark.parametrize(("scenarios", "promote"), [(60, False), (72, False), (73, True)])
def test_a_few_scenarios_without_a_loss_do_not_rule_one_out(scenarios: int, promote: bool) -> None:
    """The bootstrap has no doubt: +0.0 [+0.0, +0.0]."""
    found = judged(MANY[:scenarios], MANY[:scenarios], tokens=10)
    assert found.promote is promote
    assert ("a loss of over 5 points is not ruled out" in found.reason) is not promote


def test_a_loss_beyond_the_margin_is_not_paid_for_by_tokens() -> None:
    """Three of 60 lost, and it could be eight: the interval reaches below 5 points."""
    found = judged([False] * 3 + [True] * 57, SOLVED, tokens=10)
    assert not found.promote
    assert "it solves fewer scenarios" in found.reason or "is not ruled out" in found.reason


def test_the_margin_is_the_rules_and_is_told() -> None:
    few = [False] * 3 + [True] * 57
    found = decide(chains(few, tokens=10), chains(SOLVED), Rules(margin=14.0))
    assert found.promote
    assert found.figures["rules"]["margin"] == 14


def test_a_loss_rejects_with_its_figures() -> None:
    found = judged([True] * 30 + [False] * 30, SOLVED)
    assert not found.promote
    assert found.reason.startswith("it solves fewer scenarios: SGC -50.0 [")


def test_a_doubtful_loss_says_that_it_is_not_ruled_out() -> None:
    found = judged([False] * 4 + [True] * 56, [True] * 57 + [False] * 3, tokens=10)
    assert not found.promote
    assert found.reason.startswith("no gain is shown, and a loss of over 5 points is not ruled out: ")


@pytest.mark.parametrize(("scenarios", "promote"), [(29, False), (30, True)])
def test_fewer_scenarios_than_the_least_decide_nothing(scenarios: int, promote: bool) -> None:
    found = decide(chains([True] * scenarios), chains([False] * scenarios))
    assert found.promote is promote
    assert ("too few to tell" in found.reason) is not promote


def test_results_of_other_scenarios_are_refused() -> None:
    with pytest.raises(InvalidError, match="did not sit the same"):
        decide(chains(SOLVED), chains(SOLVED[:59]))


def test_a_policy_that_stops_writing_functions_is_warned_of_even_if_it_passes() -> None:
    found = decide(chains(MANY, tokens=50), chains(MANY, wrote=1))
    assert found.promote
    assert found.figures["warnings"] == [
        "it hardly writes functions any more: 0.0 % of tasks, the incumbent 100.0 %"
    ]


def test_a_policy_that_ignores_its_skills_is_warned_of() -> None:
    incumbent = chains(SOLVED, offered=1, used=1, names=("f",))
    found = decide(chains(SOLVED, offered=1), incumbent)
    assert found.figures["warnings"][0].startswith("it hardly uses skills it is offered any more: 0.0 % of tasks")
    assert "left no skill" in decide(chains(SOLVED), incumbent).figures["warnings"][0]


def test_a_policy_that_never_wrote_or_used_a_skill_is_not_warned_of() -> None:
    assert judged(SOLVED, FAILED).figures["warnings"] == []
