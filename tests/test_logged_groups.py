"""Who is compared with whom, what is left out and why, and what is told of it."""

import pytest

from app.errors import InvalidError
from app.records import Task
from tests.served import served, task_id
from trainer.experience.comparison import Compared, compare
from trainer.experience.records import Drop, Served, tally
from trainer.experience.task_groups import families
from trainer.sage.advantages import compute_advantages
from trainer.sage.reward import Reward


def compared(*tasks: Served, family: str = "mails") -> Compared:
    return compare(tasks, [Reward(task.score) for task in tasks], [family] * len(tasks))


def test_advantages_are_taken_within_a_position_of_a_family_and_release() -> None:
    tasks = [served(1, 1.0), served(2, 0.5), served(3, 1.0, offered=(1,)), served(4, 0.0, offered=(1,))]
    kept = [rewarded for _, rewarded in compared(*tasks).kept]
    assert {each.group for each in kept} == {"mails, release 1"}
    assert [each.position for each in kept] == [0, 0, 1, 1]
    assert [each.advantage for each in compute_advantages(kept)] == [0.25, -0.25, 0.5, -0.5]


def test_releases_are_not_compared_with_each_other() -> None:
    assert compared(served(1, 1.0, release=1), served(2, 0.0, release=2)).dropped == [Drop.ALONE, Drop.ALONE]


def test_families_are_not_compared_with_each_other() -> None:
    found = compare([served(1, 1.0), served(2, 0.0)], [Reward(1.0), Reward(0.0)], ["mails", "notes"])
    assert found.dropped == [Drop.ALONE, Drop.ALONE]


def test_tasks_with_and_without_skills_before_them_are_not_compared_with_each_other() -> None:
    assert compared(served(1, 1.0), served(2, 0.0, offered=(1,))).dropped == [Drop.ALONE, Drop.ALONE]


def test_a_group_that_earned_the_same_teaches_nothing() -> None:
    found = compared(served(1, 1.0), served(2, 1.0), served(3, 0.995))
    assert (found.kept, found.dropped) == ([], [Drop.EVEN] * 3)


def test_a_task_with_a_fault_leaves_its_group() -> None:
    found = compared(served(1, 1.0), served(2, 0.0, fault=Drop.STALE))
    assert (found.kept, found.dropped) == ([], [Drop.STALE, Drop.ALONE])


def test_score_bonus_and_staleness_go_along() -> None:
    tasks = [served(1, 1.0, staleness=2, release=3), served(2, 0.5, release=3)]
    [first, _] = compare(tasks, [Reward(1.0, 1.0), Reward(0.5)], ["a", "a"]).kept
    rewarded = first[1]
    assert (rewarded.reward, rewarded.score, rewarded.bonus, rewarded.staleness) == (2.0, 1.0, 1.0, 2)
    assert (rewarded.trajectory, rewarded.group) == (tasks[0].trajectory, "a, release 3")


def test_what_was_kept_is_counted() -> None:
    pairs = [(served(1, tokens=3), "a"), (served(2, tokens=4, staleness=1), "a"), (served(3), "b")]
    kept = tally(8, pairs, [Drop.STALE, Drop.UNSCORED, Drop.STALE, Drop.ALONE, Drop.EVEN])
    assert (kept.tasks, kept.trajectories, kept.groups, kept.tokens, kept.fraction) == (8, 3, 2, 8, 0.375)
    assert kept.dropped == {"unscored": 1, "stale": 2, "alone": 1, "even": 1}
    assert kept.staleness == {"0": 2, "1": 1}


@pytest.mark.parametrize(
    ("dropped", "told"),
    [
        ([], "no task ended in the window"),
        ([Drop.UNSCORED], "no scored tasks in the window, of 1 that ended: submit tasks with a `check`"),
        ([Drop.UNSCORED], "POST /v1/feedback with their `task_id`"),
        ([Drop.STALE, Drop.STALE, Drop.UNSCORED], r"3 tasks \(2 stale, 1 unscored\): raise `max_staleness`"),
        ([Drop.ALONE], "give them the same `scenario`"),
    ],
)
def test_nothing_to_learn_from_is_an_error_that_says_what_to_do(dropped: list[Drop], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        tally(len(dropped), [], dropped)


@pytest.mark.parametrize("reason", [each for each in Drop if each is not Drop.SURPLUS])  # that implies some kept
def test_every_reason_to_leave_a_task_out_comes_with_advice(reason: Drop) -> None:
    with pytest.raises(InvalidError, match=r": [a-z]{4}"):
        tally(1, [], [reason])


def test_a_scenario_makes_a_family_whatever_the_words() -> None:
    tasks = [Task(task_id(1), "greet iris", scenario="a"), Task(task_id(2), "pay rent", scenario="a")]
    assert families(tasks) == ["scenario a", "scenario a"]


def test_a_scenario_and_a_family_of_words_never_mix() -> None:
    labelled, plain = Task(task_id(1), "pay the rent", scenario="a"), Task(task_id(2), "pay the rent")
    assert families([labelled, plain]) == ["scenario a", f"like {task_id(2)}"]


def test_the_nearest_founder_takes_an_instruction_in() -> None:
    texts = [
        "count mails from iris",
        "count notes tagged work",
        "count notes tagged home",
        "count mails from omar",
    ]
    found = families([Task(task_id(number), text) for number, text in enumerate(texts)])
    assert found == [f"like {task_id(number)}" for number in (0, 1, 1, 0)]


def test_words_that_were_arguments_may_differ() -> None:
    tasks = [Task(task_id(1), "text Bo Lee Smith"), Task(task_id(2), "text Al Van Ray")]
    assert len(set(families(tasks))) == 2
    assert len(set(families(tasks, {task_id(1): {"bo", "lee", "smith"}}))) == 1
