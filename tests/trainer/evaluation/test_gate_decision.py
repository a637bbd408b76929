"""The gate's decision, case by case."""

import pytest

from app.base.errors import InvalidError
from tests.support.every_row import every_row
from tests.support.task_results import chains, result
from trainer.evaluation.gate_decision import (
    GateDecision,
    GateRules,
    check_reference,
    decide,
    fewest_gained,
    look_greedily,
)
from trainer.evaluation.metrics import TaskResult

SOLVED, FAILED = [True] * 60, [False] * 60
MANY = [True] * 200


def decided(candidate: list[bool], incumbent: list[bool], *, tokens: int = 100) -> GateDecision:
    return decide(chains(candidate, tokens=tokens), chains(incumbent))


def test_a_clear_gain_promotes() -> None:
    found = decided([True] * 50 + [False] * 10, [True] * 30 + [False] * 30)
    assert found.promote
    assert found.reason.startswith("it solves more scenarios: SGC +33.3 [")
    assert found.figures["difference"]["gained"] == 20


def test_a_gain_that_may_be_chance_does_not_promote() -> None:
    """Five gained and three lost of 60."""
    found = decided([True] * 5 + [False] * 3 + SOLVED[:52], [False] * 5 + [True] * 3 + SOLVED[:52])
    assert not found.promote
    assert found.figures["difference"]["sgc"]["mean"] > 0


def test_an_identical_candidate_is_not_promoted() -> None:
    found = decided(MANY, MANY)
    assert not found.promote
    assert found.reason.startswith(
        "it shows neither more solved scenarios or tasks nor fewer tokens: SGC +0.0 [+0.0,"
    )


def test_an_equal_candidate_with_fewer_tokens_is_promoted() -> None:
    found = decided(MANY, MANY, tokens=90)
    assert found.promote
    assert found.reason.startswith("it loses at most 5 points of scenarios and tasks and generates fewer tokens: ")
    assert (
        "at worst -1.9, TGC +0.0 [+0.0, +0.0] points, tokens -10.0 [-10.0, -10.0] per task, on 200" in found.reason
    )


def test_a_candidate_that_solves_nothing_gains_nothing_by_fewer_tokens() -> None:
    """Whoever completes a task at once generates the fewest."""
    idle = [result(f"s{number}", tokens=10) for number in range(200)]
    for solved_before in (0, 2):
        incumbent = [result(f"s{number}", success=number < solved_before) for number in range(200)]
        found = decide(idle, incumbent)
        assert not found.promote
        assert found.reason.startswith("it solves no task, so that it generates fewer tokens is no gain: SGC ")


def test_a_gain_is_seen_as_often_as_the_power_says() -> None:
    with every_row() as row:
        for scenarios in (30, 67, 200):
            with row(scenarios):
                enough = fewest_gained(scenarios)
                for gained in (enough - 1, enough):
                    rest = [False] * (scenarios - gained)
                    found = decided([True] * gained + rest, [False] * scenarios, tokens=110)
                    assert found.promote is (gained == enough)


def test_a_greedy_look_decides_only_what_is_open_and_only_by_more_solved() -> None:
    as_it_serves = decided(MANY, MANY, tokens=110)
    assert (as_it_serves.promote, as_it_serves.open) == (False, True)
    some = [True] * 150 + [False] * 50
    with every_row() as row:
        for name, candidate, incumbent, tokens, promote in (
            ("more", MANY, some, 100, True),
            ("fewer", some, MANY, 100, False),
            ("fewer tokens alone", MANY, MANY, 90, False),
        ):
            with row(name):
                found = look_greedily(as_it_serves, chains(candidate, tokens=tokens), chains(incumbent))
                assert (found.promote, found.worse) == (promote, name == "fewer")
                assert found.figures["difference"] == as_it_serves.figures["difference"]
    with every_row() as row:
        for name, closed in (
            ("promoted", decided(MANY, some)),
            ("lost", decided(some, MANY)),
            ("a loss is not ruled out", decided(SOLVED, SOLVED, tokens=110)),
            ("solves nothing", decide([result("a")] * 3, [result("a")] * 3)),
        ):
            with row(name):
                assert not closed.open


def test_an_equal_candidate_with_more_tokens_is_not_promoted() -> None:
    assert not decided(MANY, MANY, tokens=110).promote


def test_fewer_tokens_that_may_be_chance_do_not_promote() -> None:
    """Half of the scenarios take 100 tokens less, the others 99 more."""
    candidate = [result(f"s{number}", tokens=0 if number % 2 else 199) for number in range(200)]
    incumbent = [result(f"s{number}", tokens=100) for number in range(200)]
    found = decide(candidate, incumbent)
    assert found.figures["difference"]["tokens"]["mean"] < 0
    assert not found.promote


@pytest.mark.parametrize(("lost", "promote"), [(3, True), (4, False)])
def test_a_few_lost_scenarios_of_many_are_within_the_margin(lost: int, promote: bool) -> None:
    found = decided([False] * lost + MANY[lost:], MANY, tokens=50)
    assert found.promote is promote
    assert found.figures["difference"]["lost"] == lost
    assert found.figures["sgc_lower_bound"] == pytest.approx(-4.3 if promote else -5.03, abs=0.02)


@pytest.mark.parametrize(("scenarios", "promote"), [(60, False), (72, False), (73, True)])
def test_a_few_scenarios_without_a_loss_do_not_rule_one_out(scenarios: int, promote: bool) -> None:
    """The bootstrap interval is +0.0 [+0.0, +0.0]."""
    found = decided(MANY[:scenarios], MANY[:scenarios], tokens=10)
    assert found.promote is promote
    assert ("a loss of over 5 points of scenarios is not ruled out" in found.reason) is not promote


def test_fewer_tokens_do_not_make_up_for_a_loss_beyond_the_margin() -> None:
    """Three of 60 lost, and the interval reaches below -5 points."""
    found = decided([False] * 3 + [True] * 57, SOLVED, tokens=10)
    assert not found.promote
    assert "it solves fewer scenarios" in found.reason or "is not ruled out" in found.reason


def test_the_margin_comes_from_the_rules_and_is_in_the_figures() -> None:
    few = [False] * 3 + [True] * 57
    found = decide(chains(few, tokens=10), chains(SOLVED), GateRules(margin=14.0))
    assert found.promote
    assert found.figures["rules"]["margin"] == 14


def test_a_loss_rejects_with_its_figures() -> None:
    found = decided([True] * 30 + [False] * 30, SOLVED)
    assert not found.promote
    assert found.reason.startswith("it solves fewer scenarios: SGC -50.0 [")


def test_a_loss_that_is_not_ruled_out_is_the_reason() -> None:
    found = decided([False] * 4 + [True] * 56, [True] * 57 + [False] * 3, tokens=10)
    assert not found.promote
    assert found.reason.startswith("it shows no gain, and a loss of over 5 points of scenarios is not ruled out: ")


@pytest.mark.parametrize(("scenarios", "promote"), [(29, False), (30, True)])
def test_with_too_few_scenarios_nothing_is_promoted(scenarios: int, promote: bool) -> None:
    found = decide(chains([True] * scenarios), chains([False] * scenarios))
    assert found.promote is promote
    assert ("scenarios are too few" in found.reason) is not promote


def test_results_of_other_scenarios_are_refused() -> None:
    with pytest.raises(InvalidError, match="not of the same tasks"):
        decide(chains(SOLVED), chains(SOLVED[:59]))


def solving(tasks: list[int], **fields: object) -> list[TaskResult]:
    """One scenario of three tasks per entry, of which so many are solved."""
    return [
        result(f"s{number}", success=place < solved, **fields)
        for number, solved in enumerate(tasks)
        for place in range(3)
    ]


def test_more_tasks_promote_where_no_fewer_scenarios_are_solved() -> None:
    """No scenario is solved by either, which a gate on scenarios alone cannot see."""
    found = decide(solving([2] * 200), solving([1] * 200))
    assert found.promote
    assert found.reason.startswith("it solves more tasks: SGC +0.0 [+0.0, +0.0] points, at worst -1.9, TGC +33.3")


def test_more_tasks_do_not_make_up_for_scenarios_that_may_be_lost() -> None:
    found = decide(solving([2] * 8 + [3] * 3 + [2] * 189), solving([3] * 8 + [2] * 3 + [1] * 189))
    assert not found.promote
    assert found.reason.startswith("it solves more tasks, but a loss of over 5 points of scenarios is not ruled")


def test_more_scenarios_do_not_make_up_for_lost_tasks() -> None:
    found = decide(solving([3] * 100 + [0] * 100), solving([2] * 60 + [3] * 40 + [2] * 100))
    assert not found.promote
    assert found.reason.startswith("it solves fewer tasks: SGC +30.0 [")


def test_fewer_tokens_do_not_make_up_for_lost_tasks_of_scenarios_that_nobody_solves() -> None:
    found = decide(solving([1] * 200, tokens=10), solving([2] * 200))
    assert not found.promote
    assert found.reason.startswith("it solves fewer tasks: SGC +0.0 [")


def test_there_is_a_warning_for_a_policy_that_stops_writing_functions_even_if_it_passes() -> None:
    found = decide(chains(MANY, tokens=50), chains(MANY, wrote=1))
    assert found.promote
    assert found.figures["warnings"] == ["it rarely writes functions: in 0.0 % of tasks, the incumbent in 100.0 %"]


def test_there_is_a_warning_for_a_policy_that_ignores_its_skills() -> None:
    incumbent = chains(SOLVED, offered=1, used=1, names=("f",))
    found = decide(chains(SOLVED, offered=1), incumbent)
    assert found.figures["warnings"][0].startswith("it rarely uses the skills it is offered: in 0.0 % of tasks")
    assert "none of its skills was offered" in decide(chains(SOLVED), incumbent).figures["warnings"][0]


def test_there_is_no_warning_for_a_policy_that_never_wrote_or_used_a_skill() -> None:
    assert decided(SOLVED, FAILED).figures["warnings"] == []


@pytest.mark.slow
def test_small_losses_add_up_without_a_reference_and_not_with_one() -> None:
    """Thirty candidates, each without three more of 200 scenarios than the release that serves."""
    lost: dict[bool, int] = {}
    best = chains(MANY, tokens=1000)
    for with_reference in (False, True):
        serving, served = best, 0
        for number in range(30):
            fails = served + 3
            candidate = chains([False] * fails + MANY[fails:], tokens=999 - number)
            decision = decide(candidate, serving)
            assert decision.promote
            if with_reference:
                decision = check_reference(decision, candidate, best)
            if decision.promote:
                serving, served = candidate, fails
        lost[with_reference] = served
    assert lost == {False: 90, True: 3}


def test_the_reason_names_the_loss_to_the_reference() -> None:
    candidate = chains([False] * 20 + MANY[20:], tokens=50)
    decision = check_reference(decide(candidate, chains([False] * 20 + MANY[20:])), candidate, chains(MANY))
    assert not decision.promote
    assert decision.reason.startswith("a loss of over 5 points to the reference is not ruled out")
    assert decision.figures["reference_difference"]["lost"] == 20
