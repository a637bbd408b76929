"""Advantages by hand: rewards centred in their group and position, nothing else."""

import pytest

from tests.trajectory_samples import rollout
from trainer.sage.advantages import ScoredRollout, compute_advantages

SOME = rollout(1)


def earned(reward: float, group: str = "a", position: int = 0) -> ScoredRollout:
    return ScoredRollout(trajectory=SOME, reward=reward, score=reward, bonus=0.0, group=group, position=position)


def test_an_advantage_is_the_reward_less_the_mean_of_its_group() -> None:
    found = compute_advantages([earned(2), earned(1), earned(0), earned(-1)])
    assert [each.advantage for each in found] == [1.5, 0.5, -0.5, -1.5]
    assert [each.group_size for each in found] == [4, 4, 4, 4]


def test_positions_of_a_chain_are_centred_apart_and_never_summed() -> None:
    found = compute_advantages(
        [earned(2, position=0), earned(0, position=1), earned(1, position=0), earned(2, position=1)]
    )
    assert [each.advantage for each in found] == [0.5, -1, -0.5, 1]


def test_groups_do_not_see_each_other() -> None:
    found = compute_advantages([earned(1, "a"), earned(5, "b"), earned(0, "a"), earned(7, "b"), earned(0, "b")])
    assert [each.advantage for each in found] == [0.5, 1, -0.5, 3, -4]
    assert [each.group_size for each in found] == [2, 3, 2, 3, 3]


def test_normalised_advantages_are_divided_by_the_spread() -> None:
    """Of 3, 1, 1, 3 the mean is 2 and the spread 1; a tenth of each has a tenth of the spread."""
    found = compute_advantages([earned(3), earned(1), earned(1), earned(3)], normalise=True)
    assert [each.advantage for each in found] == pytest.approx([1, -1, -1, 1], rel=1e-3)
    small = compute_advantages([earned(0.3), earned(0.1), earned(0.1), earned(0.3)], normalise=True)
    assert [each.advantage for each in small] == pytest.approx([1, -1, -1, 1], rel=1e-2)


@pytest.mark.parametrize("normalise", [True, False])
def test_a_group_without_spread_teaches_nothing(normalise: bool) -> None:
    found = compute_advantages([earned(0.7), earned(0.7), earned(0.7)], normalise=normalise)
    assert [each.advantage for each in found] == pytest.approx([0, 0, 0], abs=1e-9)
    assert not any(each.has_signal for each in found)


def test_what_is_off_its_mean_by_less_than_a_hundredth_does_not_teach() -> None:
    found = compute_advantages([earned(0.5), earned(0.519), earned(0.0, "b"), earned(0.021, "b")])
    assert [each.has_signal for each in found] == [False, False, True, True]


def test_what_was_given_comes_back_in_its_order() -> None:
    items = [earned(1, "b"), earned(0, "a"), earned(0, "b"), earned(1, "a")]
    assert [each.rollout for each in compute_advantages(items)] == items
    assert compute_advantages([]) == []
