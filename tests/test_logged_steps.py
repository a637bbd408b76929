"""Logged groups dealt out to steps."""

from app.records import Trajectory
from tests.served import served
from trainer.experience.steps import in_steps
from trainer.sage.advantages import ScoredRollout


def rewarded(number: int, group: str) -> ScoredRollout:
    trajectory: Trajectory = served(number).trajectory
    return ScoredRollout(trajectory=trajectory, reward=1.0, score=1.0, bonus=0.0, group=group, position=0)


ITEMS = [rewarded(number, f"group {number % 5}") for number in range(20)]


def test_groups_stay_whole_and_each_is_learned_from_once() -> None:
    steps = in_steps(ITEMS, 2, 10, seed=0)
    assert [len({each.group for each in step}) for step in steps] == [2, 2, 1]
    assert sorted(each.trajectory.task.id.int for step in steps for each in step) == list(range(20))


def test_no_more_steps_are_dealt_than_asked_for() -> None:
    assert [len(step) for step in in_steps(ITEMS, 2, 1, seed=0)] == [8]


def test_the_seed_alone_decides_the_order() -> None:
    orders = {seed: [step[0].group for step in in_steps(ITEMS, 1, 9, seed)] for seed in range(4)}
    assert len({tuple(order) for order in orders.values()}) > 1
    assert [step[0].group for step in in_steps(ITEMS[::-1], 1, 9, seed=2)] == orders[2]
