"""The samples of an update: the weight of a token, and micro-batches that fit."""

from random import Random

import msgspec
import pytest

from app.base.values import Trajectory
from tests.support.trajectory_samples import advantaged, rollout, trajectory
from trainer.learning.batch import Sample, TrainingSample, divide, training_samples
from trainer.runs.rollout import experience_metrics, warnings_of
from trainer.sage.advantages import ScoredRollout, compute_advantages

EMPTY = trajectory(seed=8)  # its prompt did not fit, or the engine gave no answer in time


def training_sample(length: int) -> TrainingSample:
    return TrainingSample(Sample((1,) * length, (True,) * length), (0.0,) * length, 1.0, 0.1, False)


def lengths(batches: list[list[TrainingSample]]) -> list[list[int]]:
    return [[len(each.sample.ids) for each in batch] for batch in batches]


def test_a_token_weighs_one_by_its_task_by_g_and_by_groups() -> None:
    """Two groups have a signal, of 4 and of 2: mean over a task's tokens, over G and over groups; sum over
    positions.
    """
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


def test_samples_of_an_older_release_are_stale() -> None:
    found = training_samples([advantaged(rollout(1), 1.0, staleness=2), advantaged(rollout(2), -1.0)])
    assert [each.stale for each in found] == [True, False]


def test_rollouts_without_a_signal_give_no_samples() -> None:
    assert training_samples([advantaged(rollout(1), 0.0)]) == []
    assert divide([], 100) == [[]]


def rewritten(seed: int) -> Trajectory:
    """A chat template dropped the thoughts before the last turn."""
    first, last = rollout(seed).turns
    return trajectory(first, msgspec.structs.replace(last, extends=False), seed=seed)


def of_one_group(*pairs: tuple[Trajectory, float]) -> list[ScoredRollout]:
    return [advantaged(each, reward).rollout for each, reward in pairs]


def test_flawed_rollouts_are_left_out_and_stay_in_the_baseline() -> None:
    """Rewards 1, 0, 0, 0: a mean of 0.25 and a G of 4, however few of them are learned from."""
    good, bad = rollout(1), rollout(2)
    given = compute_advantages(of_one_group((good, 1.0), (bad, 0.0), (EMPTY, 0.0), (EMPTY, 0.0)))
    found = training_samples(given)
    assert [each.advantage for each in found] == [0.75, -0.25]
    assert [each.weight for each in found] == pytest.approx(
        [1 / (4 * good.generated_tokens), 1 / (4 * bad.generated_tokens)]
    )
    metrics = experience_metrics(given)
    assert (metrics["trained_fraction"], metrics["empty"]) == (0.5, 2)
    assert ["sampled nothing" in each for each in warnings_of(metrics)] == [True]


def test_a_group_of_flawed_rollouts_is_not_counted() -> None:
    some = rollout(1)
    (found,) = training_samples([advantaged(some, 1.0), advantaged(EMPTY, 1.0, group="b")])
    assert found.weight == pytest.approx(1 / (2 * some.generated_tokens))
    assert training_samples([advantaged(EMPTY, 1.0)]) == []


def test_a_rollout_whose_template_rewrote_turns_gives_several_samples_of_one_weight() -> None:
    some = rewritten(1)
    found = training_samples([advantaged(some, 1.0, size=4)])
    assert [each.logprobs for each in found] == [turn.logprobs for turn in some.turns]
    assert [sum(each.sample.sampled) for each in found] == [len(turn.logprobs) for turn in some.turns]
    assert [each.weight for each in found] == pytest.approx([1 / (4 * some.generated_tokens)] * 2)


def test_every_sample_comes_once_and_micro_batches_keep_to_the_budget() -> None:
    rng = Random(1)
    samples = [training_sample(rng.randrange(1, 200)) for _ in range(100)]
    (batches,) = divide(samples, 500)
    assert sorted(length for batch in lengths(batches) for length in batch) == sorted(
        len(each.sample.ids) for each in samples
    )
    assert all(sum(batch) <= 500 for batch in lengths(batches))
    assert len(batches) <= sum(len(each.sample.ids) for each in samples) / 500 * 1.5


def test_a_sample_longer_than_the_budget_is_a_micro_batch_of_its_own() -> None:
    assert lengths(divide([training_sample(9), training_sample(700), training_sample(5)], 100)[0]) == [
        [5, 9],
        [700],
    ]


def test_micro_batches_are_about_even() -> None:
    """60 tokens with a budget of 50: two micro-batches of 30, not one of 50 and one of 10."""
    assert lengths(divide([training_sample(10) for _ in range(6)], 50)[0]) == [[10] * 3, [10] * 3]


def test_processes_share_the_tokens() -> None:
    shares = divide([training_sample(length) for length in (40, 10, 30, 20)], 1000, processes=2)
    assert [lengths(batches) for batches in shares] == [[[10, 30]], [[20, 40]]]
    assert [lengths(batches) for batches in divide([training_sample(5)], 1000, processes=3)] == [[[5]], [], []]
