"""What an update learns from: the weight of a token, and parts that fit."""

from random import Random

import msgspec
import pytest

from app.errors import InvalidError
from app.records import Trajectory
from tests.trajectory_samples import advantaged, rollout, trajectory
from trainer.learning.batch import Sample
from trainer.learning.training_samples import TrainingSample, divide, training_samples
from trainer.runs.step_metrics import experience_metrics, warnings_of
from trainer.sage.advantages import ScoredRollout, compute_advantages

EMPTY = trajectory(seed=8)  # its prompt did not fit, or the engine was too slow for one answer


def item(length: int) -> TrainingSample:
    return TrainingSample(Sample((1,) * length, (True,) * length), (0.0,) * length, 1.0, 0.1, False)


def lengths(parts: list[list[TrainingSample]]) -> list[list[int]]:
    return [[len(each.sample.ids) for each in part] for part in parts]


def test_a_token_weighs_one_by_its_task_by_g_and_by_groups() -> None:
    """Two groups teach, of 4 and of 2: mean over a task's tokens, over G and over groups; sum over positions."""
    one, other = rollout(1), rollout(2)
    given = [
        advantaged(one, 1.0, group="a", size=4),
        advantaged(other, -0.5, group="a", size=4, position=1),
        advantaged(one, 0.25, group="b", size=2),
        advantaged(rollout(3), 0.0, group="c", size=2),
    ]
    found = training_samples(given)
    assert [each.advantage for each in found] == [1.0, -0.5, 0.25]
    ones, others = one.generated_tokens, other.generated_tokens
    assert ones != others
    assert [each.weight for each in found] == pytest.approx(
        [1 / (2 * 4 * ones), 1 / (2 * 4 * others), 1 / (2 * 2 * ones)]
    )


def test_logprobs_are_those_of_all_turns_in_order() -> None:
    some = rollout(4, turns=3)
    (found,) = training_samples([advantaged(some, 1.0)])
    assert found.logprobs == sum((turn.logprobs for turn in some.turns), ())
    assert sum(found.sample.sampled) == len(found.logprobs)


def test_what_an_older_release_sampled_is_stale() -> None:
    found = training_samples([advantaged(rollout(1), 1.0, staleness=2), advantaged(rollout(2), -1.0)])
    assert [each.stale for each in found] == [True, False]


def test_nothing_that_teaches_is_nothing() -> None:
    assert training_samples([advantaged(rollout(1), 0.0)]) == []
    assert divide([], 100) == [[]]


def rewritten(seed: int) -> Trajectory:
    """A chat template dropped what was thought before the last turn."""
    first, last = rollout(seed).turns
    return trajectory(first, msgspec.structs.replace(last, extends=False), seed=seed)


def of_one_group(*pairs: tuple[Trajectory, float]) -> list[ScoredRollout]:
    return [advantaged(each, reward).rollout for each, reward in pairs]


def test_what_no_update_can_learn_from_is_left_out_and_stays_in_the_baseline() -> None:
    """Rewards 1, 0, 0, 0: a mean of 0.25 and a G of 4, however few of them are learned from."""
    good, bad = rollout(1), rollout(2)
    given = compute_advantages(of_one_group((good, 1.0), (bad, 0.0), (EMPTY, 0.0), (rewritten(3), 0.0)))
    found = training_samples(given)
    assert [each.advantage for each in found] == [0.75, -0.25]
    assert [each.weight for each in found] == pytest.approx(
        [1 / (4 * good.generated_tokens), 1 / (4 * bad.generated_tokens)]
    )
    metrics = experience_metrics(given)
    assert (metrics["trained_fraction"], metrics["rewritten"], metrics["empty"]) == (0.5, 1, 1)
    assert ["chat template" in each for each in warnings_of(metrics)] == [True, False]


def test_a_group_of_which_nothing_can_be_learned_from_is_not_counted() -> None:
    some = rollout(1)
    (found,) = training_samples([advantaged(some, 1.0), advantaged(EMPTY, 1.0, group="b")])
    assert found.weight == pytest.approx(1 / (2 * some.generated_tokens))
    assert training_samples([advantaged(EMPTY, 1.0)]) == []


def test_a_chat_template_that_leaves_nothing_to_learn_from_is_named() -> None:
    with pytest.raises(InvalidError, match="chat template rewrote earlier turns in all 2 rollouts"):
        training_samples(
            [advantaged(rewritten(1), 1.0), advantaged(rewritten(2), -1.0), advantaged(rollout(3), 0.0)]
        )


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
