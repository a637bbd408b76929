"""Advantages by hand: rewards centered in their group and position, nothing else."""

import pytest

from tests.support.trajectory_samples import rollout
from trainer.sage.advantages import ScoredRollout, compute_advantages

TRAJECTORY = rollout(1)


def scored(reward: float, group: str = "a", position: int = 0) -> ScoredRollout:
    return ScoredRollout(
        trajectory=TRAJECTORY, reward=reward, score=reward, bonus=0.0, group=group, position=position
    )


def test_an_advantage_is_the_reward_less_the_mean_of_its_group() -> None:
    advantaged = compute_advantages([scored(2), scored(1), scored(0), scored(-1)])
    assert [each.advantage for each in advantaged] == [1.5, 0.5, -0.5, -1.5]
    assert [each.group_size for each in advantaged] == [4, 4, 4, 4]


def test_positions_of_a_chain_are_centered_apart_and_never_summed() -> None:
    advantaged = compute_advantages(
        [scored(2, position=0), scored(0, position=1), scored(1, position=0), scored(2, position=1)]
    )
    assert [each.advantage for each in advantaged] == [0.5, -1, -0.5, 1]


def test_groups_are_centered_apart() -> None:
    advantaged = compute_advantages(
        [scored(1, "a"), scored(5, "b"), scored(0, "a"), scored(7, "b"), scored(0, "b")]
    )
    assert [each.advantage for each in advantaged] == [0.5, 1, -0.5, 3, -4]
    assert [each.group_size for each in advantaged] == [2, 3, 2, 3, 3]


def test_normalized_advantages_are_divided_by_the_standard_deviation() -> None:
    """Of 3, 1, 1, 3 the mean is 2 and the deviation 1; a tenth of each has a tenth of it."""
    advantaged = compute_advantages([scored(3), scored(1), scored(1), scored(3)], normalize=True)
    assert [each.advantage for each in advantaged] == pytest.approx([1, -1, -1, 1], rel=1e-3)
    small = compute_advantages([scored(0.3), scored(0.1), scored(0.1), scored(0.3)], normalize=True)
    assert [each.advantage for each in small] == pytest.approx([1, -1, -1, 1], rel=1e-2)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_group_without_spread_has_no_signal(normalize: bool) -> None:
    advantaged = compute_advantages([scored(0.7), scored(0.7), scored(0.7)], normalize=normalize)
    assert [each.advantage for each in advantaged] == pytest.approx([0, 0, 0], abs=1e-9)
    assert not any(each.has_signal for each in advantaged)


def test_an_advantage_below_a_hundredth_is_no_signal() -> None:
    advantaged = compute_advantages([scored(0.5), scored(0.519), scored(0.0, "b"), scored(0.021, "b")])
    assert [each.has_signal for each in advantaged] == [False, False, True, True]


def test_advantages_are_in_the_order_of_the_rollouts() -> None:
    rollouts = [scored(1, "b"), scored(0, "a"), scored(0, "b"), scored(1, "a")]
    assert [each.rollout for each in compute_advantages(rollouts)] == rollouts
    assert compute_advantages([]) == []
