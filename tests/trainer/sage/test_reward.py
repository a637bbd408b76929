"""Rewards of a chain, worked out by hand from the table of the paper (arXiv 2512.17102, section 3.3)."""

from statistics import fmean
from uuid import UUID, uuid4

import msgspec
import pytest

from app.base.values import Stop, Use
from tests.support.trajectory_samples import coded, offer, trajectory
from trainer.rewards import chain_step
from trainer.sage.reward import (
    ChainStep,
    RewardRule,
    chain_success,
    known_rewards,
    outcome,
    skill_integrated,
    skill_integrated_by_name,
    skill_value,
    with_use_values,
)

A, B = uuid4(), uuid4()


def task(score: float, *, made: str = "", used: str = "", named: str = "", no_code: bool = False) -> ChainStep:
    """Skills are the letters A and B."""

    def ids(letters: str) -> frozenset[UUID]:
        return frozenset({"A": A, "B": B}[letter] for letter in letters)

    return ChainStep(
        score=score,
        success=score == 1,
        creditable=ids(made),
        used=ids(used),
        called_by_name=ids(named),
        no_code=no_code,
    )


def totals(*chain: ChainStep, rule: RewardRule = skill_integrated) -> list[float]:
    return [each.total for each in rule(chain)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (task(1, made="A"), task(1, used="A"), [2, 2]),
        (task(1, made="A"), task(1), [1, 1]),
        (task(1, made="A"), task(0, used="A"), [1, 0]),
        (task(1, made="A"), task(0.5, used="A"), [1, 0.5]),
        (task(0.5, made="A"), task(1, used="A"), [0.5, 2]),
        (task(0, made="A"), task(0, used="A"), [0, 0]),
        (task(1), task(1, used="A"), [1, 1]),  # a skill that this chain did not make, or a wrapper of one API
        (task(1, made="A"), task(1, used="B"), [1, 1]),
        (task(1), task(1, made="A", used="A"), [1, 1]),  # made and used in one task
        (task(1, used="A"), task(1, made="A"), [1, 1]),  # used before it was made
    ],
)
def test_a_bonus_needs_a_success_that_used_what_an_earlier_task_made(
    first: ChainStep, second: ChainStep, expected: list[float]
) -> None:
    assert totals(first, second) == expected


def test_a_task_that_ended_without_code_earns_minus_one_whatever_its_score() -> None:
    assert totals(task(0.5, no_code=True), task(1)) == [-1, 1]
    assert totals(task(0, no_code=True), task(0, no_code=True), rule=outcome) == [-1, -1]
    assert totals(task(1, made="A"), task(0.5, used="A", no_code=True)) == [1, -1]


def test_in_a_chain_of_three_each_success_gets_its_own_bonus() -> None:
    assert totals(task(1, made="A"), task(1, made="B"), task(1, used="A")) == [2, 1, 2]
    assert totals(task(1, made="A"), task(1, made="B"), task(1, used="B")) == [1, 2, 2]
    assert totals(task(1, made="A"), task(0.5, used="A"), task(1, used="A")) == [2, 0.5, 2]
    assert totals(task(1, made="A"), task(1, used="A"), task(0, used="A")) == [2, 2, 0]


def test_a_task_earns_one_bonus_at_most() -> None:
    """The middle one used a skill and made one that was used; the last one used two."""
    chain = task(1, made="A"), task(1, made="B", used="A"), task(1, used="AB")
    assert totals(*chain) == [2, 2, 2]
    assert [each.bonus for each in skill_integrated(chain)] == [1, 1, 1]


def test_the_outcome_rule_gives_no_bonus() -> None:
    assert totals(task(1, made="A"), task(1, used="A"), rule=outcome) == [1, 1]


def test_the_chain_rule_gives_a_bonus_where_all_succeed_used_or_not() -> None:
    assert totals(task(1), task(1), rule=chain_success) == [2, 2]
    assert totals(task(1, made="A"), task(0.5, used="A"), rule=chain_success) == [1, 0.5]
    assert totals(task(1), task(1), task(0), rule=chain_success) == [1, 1, 0]


def test_the_chain_rule_gives_no_bonus_for_a_chain_of_one() -> None:
    assert totals(task(1), rule=chain_success) == [1]


def test_a_skill_called_by_name_counts_only_under_the_rule_by_name() -> None:
    chain = task(1, made="A"), task(1, named="A")
    assert totals(*chain) == [1, 1]
    assert totals(*chain, rule=skill_integrated_by_name) == [2, 2]
    assert totals(task(1, made="A"), task(1, used="A"), rule=skill_integrated_by_name) == [1, 1]


def test_the_value_of_use_is_the_difference_of_the_means_of_its_kind() -> None:
    steps = [task(1, used="A"), task(0, used="B"), task(1), task(1), task(0.5, used="A"), task(0)]
    found = with_use_values(steps, ["k", "k", "k", "k", "only used", "only direct"])
    assert [each.use_value for each in found] == [-0.5, -0.5, -0.5, -0.5, None, None]


def test_what_nobody_can_tell_is_part_of_no_value_of_use() -> None:
    """Of four users two succeeded and two are unknown, of two others one succeeded: 1 - 0.5, not 0.5 - 0.5."""
    unknown = msgspec.structs.replace(task(0, used="A"), known=False)
    steps = [task(1, used="A"), task(1, used="A"), unknown, unknown, task(1), task(0)]
    assert {each.use_value for each in with_use_values(steps, ["k"] * 6)} == {0.5}
    assert {each.use_value for each in with_use_values([unknown, task(1)], ["k"] * 2)} == {None}


def test_a_reward_is_unknown_that_depends_on_what_nobody_can_tell() -> None:
    def known(rule: RewardRule, *chain: ChainStep) -> list[float | None]:
        return [each.total if each else None for each in known_rewards(rule, chain)]

    unknown = msgspec.structs.replace(task(0, used="A"), known=False)
    assert known(skill_value, task(1, made="A"), unknown) == [None, None]
    assert known(skill_value, task(1, made="B"), unknown) == [1, None]
    assert known(skill_value, task(0, made="A"), unknown) == [0, None]
    assert known(skill_value, task(1, made="A"), unknown, task(1, used="A")) == [2, None, 2]
    assert known(outcome, task(1, made="A"), unknown) == [1, None]
    assert known(chain_success, task(1), unknown) == [None, None]
    assert known(chain_success, task(1), task(0), unknown) == [1, 0, None]
    assert known(chain_success, task(1), task(1)) == [2, 2]


@pytest.mark.parametrize(("value", "expected"), [(None, [2, 2]), (0.0, [2, 2]), (0.3, [2, 2]), (-0.1, [1, 1])])
def test_a_use_that_does_worse_than_doing_without_pays_neither_end(
    value: float | None, expected: list[float]
) -> None:
    user = msgspec.structs.replace(task(1, used="A"), use_value=value)
    assert totals(task(1, made="A"), user, rule=skill_value) == expected


def test_using_skills_that_succeed_half_as_often_pays_no_more_than_solving_directly() -> None:
    """Of eight users four succeed, of eight others all: the paper's rule pays both ways alike."""
    users = [task(score, used="A") for score in (1, 1, 1, 1, 0, 0, 0, 0)]
    steps = with_use_values([*users, *[task(1)] * 8], ["second"] * 16)
    for rule, paid in ((skill_integrated, 1.0), (skill_value, 0.5)):
        rewards = [totals(task(1, made="A"), step, rule=rule)[1] for step in steps]
        assert (fmean(rewards[:8]), fmean(rewards[8:])) == (paid, 1.0)


def test_an_empty_chain_has_no_rewards() -> None:
    assert skill_integrated([]) == []


def test_used_is_what_was_executed_and_returned() -> None:
    ran, raised, own = offer("ran"), offer("raised"), offer("own")
    turn = coded("...", Use("ran", True, 3, 1), Use("raised", True, 2, 0), Use("own", False, 1, 1))
    found = chain_step(trajectory(turn, offered=[ran, raised, own]), 1.0, success=True, creditable=frozenset())
    assert found.used == {ran.skill_id}


def test_skills_called_by_name_are_called_and_not_redefined() -> None:
    called, passed, redefined, quoted = offer("called"), offer("passed"), offer("redefined"), offer("quoted")
    first = coded("def redefined():\n    return 1\nx = called(1) + redefined()")
    second = coded("print(passed, 'quoted()')")
    broken = coded("passed(")
    found = chain_step(
        trajectory(first, second, broken, offered=[called, passed, redefined, quoted]),
        1.0,
        success=True,
        creditable=frozenset(),
    )
    assert found.called_by_name == {called.skill_id}


def test_what_ended_without_code_is_no_success_whatever_its_score() -> None:
    """Neither it nor the maker of the skill that it used earns a bonus."""
    skill = offer("ran")
    maker = chain_step(trajectory(coded("x = 1")), 1.0, success=True, creditable=frozenset({skill.skill_id}))
    for stop, expected in ((Stop.NO_CODE, [1.0, -1.0]), (Stop.COMPLETED, [2.0, 2.0])):
        turn = coded("ran()", Use("ran", True, 1, 1))
        user = chain_step(trajectory(turn, offered=[skill], stop=stop), 1.0, success=True, creditable=frozenset())
        assert (user.no_code, user.success) == (stop is Stop.NO_CODE, stop is Stop.COMPLETED)
        assert totals(maker, user) == expected
