"""What an update learns from: the weight of a token, and parts that fit."""

from random import Random

import pytest

from tests.rewarded import advised, rollout
from trainer.learning.batch import Sample
from trainer.learning.items import Item, divide, items_of


def item(length: int) -> Item:
    return Item(Sample((1,) * length, (True,) * length), (0.0,) * length, 1.0, 0.1, False)


def lengths(parts: list[list[Item]]) -> list[list[int]]:
    return [[len(each.sample.ids) for each in part] for part in parts]


def test_a_token_weighs_one_by_its_task_by_g_and_by_groups() -> None:
    """Two groups teach, of 4 and of 2: mean over a task's tokens, over G and over groups; sum over positions."""
    one, other = rollout(1), rollout(2)
    given = [
        advised(one, 1.0, group="a", size=4),
        advised(other, -0.5, group="a", size=4, position=1),
        advised(one, 0.25, group="b", size=2),
        advised(rollout(3), 0.0, group="c", size=2),
    ]
    found = items_of(given)
    assert [each.advantage for each in found] == [1.0, -0.5, 0.25]
    ones, others = one.generated_tokens, other.generated_tokens
    assert ones != others
    assert [each.weight for each in found] == pytest.approx(
        [1 / (2 * 4 * ones), 1 / (2 * 4 * others), 1 / (2 * 2 * ones)]
    )


def test_logprobs_are_those_of_all_turns_in_order() -> None:
    some = rollout(4, turns=3)
    (found,) = items_of([advised(some, 1.0)])
    assert found.logprobs == sum((turn.logprobs for turn in some.turns), ())
    assert sum(found.sample.sampled) == len(found.logprobs)


def test_what_an_older_release_sampled_is_stale() -> None:
    found = items_of([advised(rollout(1), 1.0, staleness=2), advised(rollout(2), -1.0)])
    assert [each.stale for each in found] == [True, False]


def test_nothing_that_teaches_is_nothing() -> None:
    assert items_of([advised(rollout(1), 0.0)]) == []
    assert divide([], 100) == [[]]


def test_every_item_comes_once_and_parts_keep_to_the_budget() -> None:
    rng = Random(1)
    items = [item(rng.randrange(1, 200)) for _ in range(100)]
    (parts,) = divide(items, 500)
    assert sorted(length for part in lengths(parts) for length in part) == sorted(
        len(each.sample.ids) for each in items
    )
    assert all(sum(part) <= 500 for part in lengths(parts))
    assert len(parts) <= sum(len(each.sample.ids) for each in items) / 500 * 1.5


def test_what_is_longer_than_the_budget_is_a_part_of_its_own() -> None:
    assert lengths(divide([item(9), item(700), item(5)], 100)[0]) == [[5, 9], [700]]


def test_parts_are_about_even() -> None:
    """60 tokens with a budget of 50: two parts of 30, not one of 50 and one of 10."""
    assert lengths(divide([item(10) for _ in range(6)], 50)[0]) == [[10] * 3, [10] * 3]


def test_processes_share_the_tokens() -> None:
    shares = divide([item(length) for length in (40, 10, 30, 20)], 1000, processes=2)
    assert [lengths(parts) for parts in shares] == [[[10, 30]], [[20, 40]]]
    assert [lengths(parts) for parts in divide([item(5)], 1000, processes=3)] == [[[5]], [], []]
