"""Rewards of served tasks, worked out by hand: the cases of SAGE's table, and those that only logged tasks
have.
"""

from uuid import UUID

import pytest

from app.base.values import Stop
from tests.support.scored_tasks import at, scored, skill, task_id
from tests.support.scripted_engine import block
from trainer.rewards import ScoredTask, compute_rewards
from trainer.sage.reward import (
    RewardRule,
    chain_success,
    outcome,
    skill_integrated,
    skill_integrated_by_name,
    skill_value,
)

MADE_BY_1 = {skill(1): task_id(1)}
MAKER = scored(1)
USER = scored(2, offered=(1,), used=(1,))


def totals(
    *tasks: ScoredTask,
    makers: dict[UUID, UUID | None] | None = None,
    rule: RewardRule = skill_integrated,
) -> list[float]:
    rewards = compute_rewards(tasks, ["any"] * len(tasks), MADE_BY_1 if makers is None else makers, rule)
    return [reward.total for reward in rewards]


@pytest.mark.parametrize(
    ("maker", "user", "expected"),
    [
        (1.0, 1.0, [2.0, 2.0]),
        (1.0, 0.0, [1.0, 0.0]),
        (1.0, 0.9, [1.0, 0.9]),  # not all of it done is not a success
        (0.5, 1.0, [0.5, 2.0]),  # a maker that failed earns nothing, its user does
    ],
)
def test_a_used_skill_rewards_each_end_that_succeeded_if_its_user_did(
    maker: float, user: float, expected: list[float]
) -> None:
    assert totals(scored(1, maker), scored(2, user, offered=(1,), used=(1,))) == expected


def test_an_offer_that_was_not_taken_earns_nothing() -> None:
    assert totals(MAKER, scored(2, offered=(1,))) == [1.0, 1.0]


def test_a_skill_used_by_two_tasks_rewards_its_maker_once() -> None:
    assert totals(MAKER, USER, scored(3, offered=(1,), used=(1,))) == [2.0, 2.0, 2.0]


def test_one_user_that_succeeds_is_enough_for_the_maker() -> None:
    assert totals(MAKER, scored(2, 0.0, offered=(1,), used=(1,)), scored(3, offered=(1,), used=(1,))) == [2, 0, 2]


def test_using_the_skills_of_two_tasks_earns_one_bonus_and_rewards_both() -> None:
    makers: dict[UUID, UUID | None] = {skill(1): task_id(1), skill(2): task_id(2)}
    assert totals(MAKER, scored(2), scored(3, offered=(1, 2), used=(1, 2)), makers=makers) == [
        2.0,
        2.0,
        2.0,
    ]


def test_a_task_that_uses_one_skill_and_leaves_another_earns_one_bonus() -> None:
    makers: dict[UUID, UUID | None] = {skill(1): task_id(1), skill(2): task_id(2)}
    assert totals(MAKER, USER, scored(3, offered=(2,), used=(2,)), makers=makers) == [2.0, 2.0, 2.0]


def test_a_user_that_began_before_the_maker_earns_nothing_for_either() -> None:
    assert totals(at(MAKER, 9), USER) == [1.0, 1.0]


@pytest.mark.parametrize("maker", [None, task_id(77)])
def test_the_user_of_a_skill_whose_maker_is_gone_or_outside_the_window_earns_its_bonus(maker: UUID | None) -> None:
    assert totals(USER, makers={skill(1): maker}) == [2.0]


def test_a_skill_that_may_not_earn_gives_no_bonus() -> None:
    assert totals(MAKER, USER, makers={}) == [1.0, 1.0]


def test_only_the_maker_of_the_version_that_was_used_is_rewarded() -> None:
    makers: dict[UUID, UUID | None] = {skill(1): task_id(1), skill(2): task_id(2)}  # 2 is the next version of 1
    assert totals(MAKER, scored(2), scored(3, offered=(1,), used=(1,)), makers=makers) == [2.0, 1.0, 2.0]


def test_a_task_without_code_gets_minus_one_whatever_was_made_of_its_skills() -> None:
    assert totals(scored(1, stop=Stop.NO_CODE), USER) == [-1.0, 2.0]


def test_a_stale_task_still_rewards_the_maker_of_its_skill() -> None:
    assert totals(MAKER, scored(2, offered=(1,), used=(1,), staleness=9)) == [2.0, 2.0]


def test_under_the_chain_rule_an_offer_joins_two_successes_whether_it_was_taken_or_not() -> None:
    untaken, failed = scored(2, offered=(1,)), scored(3, 0.0, offered=(1,), used=(1,))
    assert totals(MAKER, untaken, failed, rule=chain_success) == [2.0, 2.0, 0.0]
    assert totals(MAKER, failed, rule=chain_success) == [1.0, 0.0]
    assert totals(scored(1), rule=chain_success) == [1.0]


def test_under_the_outcome_rule_skills_earn_nothing() -> None:
    assert totals(MAKER, USER, rule=outcome) == [1.0, 1.0]


def test_by_name_alone_a_call_counts_whatever_came_of_it() -> None:
    named = scored(2, offered=(1,), text=block("skill_1()"))
    assert totals(MAKER, named) == [1.0, 1.0]
    assert totals(MAKER, named, rule=skill_integrated_by_name) == [2.0, 2.0]


def test_a_use_is_compared_with_tasks_of_its_scenario_alone() -> None:
    """Use fails half of the time. In its own scenario doing without always succeeds, in the other one never."""
    used = [scored(2, offered=(1,), used=(1,)), scored(3, 0.0, offered=(1,), used=(1,))]
    tasks = [MAKER, *used, scored(4), scored(5, 0.0)]
    for direct, expected in (
        (["other", "a", "a", "a", "b"], [1, 1, 0, 1, 0]),
        (["other", "b", "b", "a", "b"], [2, 2, 0, 1, 0]),
    ):
        rewards = compute_rewards(tasks, direct, MADE_BY_1, skill_value)
        assert [reward.total for reward in rewards] == expected
