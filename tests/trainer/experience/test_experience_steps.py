"""Logged groups split into optimizer steps."""

from app.base.values import Trajectory
from tests.support.scored_tasks import scored
from trainer.rewards import split_into_steps
from trainer.sage.advantages import ScoredRollout


def rollout(number: int, group: str) -> ScoredRollout:
    trajectory: Trajectory = scored(number).trajectory
    return ScoredRollout(trajectory=trajectory, reward=1.0, score=1.0, bonus=0.0, group=group, position=0)


ROLLOUTS = [rollout(number, f"group {number % 5}") for number in range(20)]


def test_groups_stay_whole_and_each_is_in_one_step() -> None:
    steps = split_into_steps(ROLLOUTS, 2, 10, seed=0)
    assert [len({each.group for each in step}) for step in steps] == [2, 2, 1]
    assert sorted(each.trajectory.task.id.int for step in steps for each in step) == list(range(20))


def test_there_are_no_more_steps_than_asked_for() -> None:
    assert [len(step) for step in split_into_steps(ROLLOUTS, 2, 1, seed=0)] == [8]


def test_the_seed_alone_decides_the_order() -> None:
    orders = {seed: [step[0].group for step in split_into_steps(ROLLOUTS, 1, 9, seed)] for seed in range(4)}
    assert len({tuple(order) for order in orders.values()}) > 1
    assert [step[0].group for step in split_into_steps(ROLLOUTS[::-1], 1, 9, seed=2)] == orders[2]
