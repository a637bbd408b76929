"""Which served tasks are compared with each other, why others are dropped, and the summary of both."""

from collections import defaultdict
from itertools import pairwise

import pytest

from app.base.errors import InvalidError
from app.base.values import Task
from tests.support.every_row import every_row
from tests.support.scored_tasks import scored, task_id
from trainer.rewards import (
    DropReason,
    ScoredTask,
    Selected,
    group_tasks,
    infer_scenarios,
    split_into_steps,
    summarize,
)
from trainer.sage.advantages import ScoredRollout, compute_advantages
from trainer.sage.reward import Reward


def grouped(*tasks: ScoredTask, scenario: str = "mails") -> Selected[ScoredRollout]:
    return group_tasks(tasks, [Reward(task.score) for task in tasks], [scenario] * len(tasks))


def test_advantages_are_taken_within_a_position_of_a_scenario_and_release() -> None:
    tasks = [
        scored(1, 1.0),
        scored(2, 0.5),
        scored(3, 1.0, offered=(1,)),
        scored(4, 0.0, offered=(1,)),
    ]
    kept = [rollout for _, rollout in grouped(*tasks).kept]
    assert {each.group for each in kept} == {"mails, release 1"}
    assert [each.position for each in kept] == [0, 0, 1, 1]
    assert [each.advantage for each in compute_advantages(kept)] == [0.25, -0.25, 0.5, -0.5]


@pytest.mark.parametrize(("count", "sizes"), [(8, [8]), (9, [5, 4]), (17, [6, 6, 5]), (75, [8] * 5 + [7] * 5)])
def test_no_group_is_larger_than_those_of_rollouts_and_none_much_smaller(count: int, sizes: list[int]) -> None:
    kept = grouped(*(scored(number, float(number % 2)) for number in range(count))).kept
    members = defaultdict(list)
    for task, rollout in kept:
        members[rollout.group].append(task.began)
    assert sorted(map(len, members.values()), reverse=True) == sizes
    assert sorted(began for each in members.values() for began in each) == [task.began for task, _ in kept]
    assert all(max(first) < min(second) for first, second in pairwise(members.values())), "they follow in time"


@pytest.mark.parametrize(("kinds", "steps"), [(10, 32), (20, 34), (40, 34)])
def test_steps_grow_with_the_scores(kinds: int, steps: int) -> None:
    """Of 1,500 scored tasks, with six groups a step."""
    tasks = [scored(number, float(number // kinds % 2)) for number in range(1500)]
    found = group_tasks(tasks, [Reward(task.score) for task in tasks], [f"{each % kinds}" for each in range(1500)])
    assert len(split_into_steps([rollout for _, rollout in found.kept], 6, 1000, 0)) == steps


def test_releases_are_not_compared_with_each_other() -> None:
    assert grouped(scored(1, 1.0, release=1), scored(2, 0.0, release=2)).dropped == [
        DropReason.NO_PEERS,
        DropReason.NO_PEERS,
    ]


def test_scenarios_are_not_compared_with_each_other() -> None:
    found = group_tasks([scored(1, 1.0), scored(2, 0.0)], [Reward(1.0), Reward(0.0)], ["mails", "notes"])
    assert found.dropped == [DropReason.NO_PEERS, DropReason.NO_PEERS]


def test_tasks_with_and_without_skills_before_them_are_not_compared_with_each_other() -> None:
    assert grouped(scored(1, 1.0), scored(2, 0.0, offered=(1,))).dropped == [
        DropReason.NO_PEERS,
        DropReason.NO_PEERS,
    ]


def test_a_group_that_earned_the_same_teaches_nothing() -> None:
    found = grouped(scored(1, 1.0), scored(2, 1.0), scored(3, 0.995))
    assert (found.kept, found.dropped) == ([], [DropReason.EQUAL_REWARDS] * 3)


def test_an_unusable_task_leaves_its_group() -> None:
    found = grouped(scored(1, 1.0), scored(2, 0.0, unusable=DropReason.STALE))
    assert (found.kept, found.dropped) == ([], [DropReason.STALE, DropReason.NO_PEERS])


def test_a_grouped_rollout_keeps_score_bonus_and_staleness() -> None:
    tasks = [scored(1, 1.0, staleness=2, release=3), scored(2, 0.5, release=3)]
    [first, _] = group_tasks(tasks, [Reward(1.0, 1.0), Reward(0.5)], ["a", "a"]).kept
    rollout = first[1]
    assert (rollout.reward, rollout.score, rollout.bonus, rollout.staleness) == (2.0, 1.0, 1.0, 2)
    assert (rollout.trajectory, rollout.group) == (tasks[0].trajectory, "a, release 3")


def test_the_summary_counts_kept_and_dropped_tasks() -> None:
    pairs = [(scored(1, tokens=3), "a"), (scored(2, tokens=4, staleness=1), "a"), (scored(3), "b")]
    data = summarize(
        8,
        pairs,
        [DropReason.STALE, DropReason.UNSCORED, DropReason.STALE, DropReason.NO_PEERS, DropReason.EQUAL_REWARDS],
    )
    assert (data.tasks, data.trajectories, data.groups, data.tokens, data.fraction) == (8, 3, 2, 8, 0.375)
    assert data.dropped == {"unscored": 1, "stale": 2, "no_peers": 1, "equal_rewards": 1}
    assert data.staleness == {"0": 2, "1": 1}


@pytest.mark.parametrize(
    ("dropped", "advice"),
    [
        ([], "no task ended in the window"),
        ([DropReason.UNSCORED], "no scored tasks in the window, of 1 that ended: submit tasks with a `check`"),
        ([DropReason.UNSCORED], "POST /v1/feedback with their `task_id`"),
        (
            [DropReason.STALE, DropReason.STALE, DropReason.UNSCORED],
            r"3 tasks \(2 stale, 1 unscored\): raise `max_staleness`",
        ),
        ([DropReason.NO_PEERS], "give them the same `scenario`"),
    ],
)
def test_without_usable_tasks_the_error_says_what_to_do(dropped: list[DropReason], advice: str) -> None:
    with pytest.raises(InvalidError, match=advice):
        summarize(len(dropped), [], dropped)


def test_every_reason_to_drop_a_task_comes_with_advice() -> None:
    with every_row() as row:
        for reason in sorted(set(DropReason) - {DropReason.SURPLUS}):
            with row(reason), pytest.raises(InvalidError, match=r": [a-z ]{4}"):
                summarize(1, [], [reason])


def test_tasks_with_one_label_share_a_scenario_whatever_their_words() -> None:
    tasks = [Task(task_id(1), "greet iris", scenario="a"), Task(task_id(2), "pay rent", scenario="a")]
    assert infer_scenarios(tasks) == ["scenario a", "scenario a"]


def test_a_labelled_and_an_inferred_scenario_are_never_the_same() -> None:
    labelled, plain = Task(task_id(1), "pay the rent", scenario="a"), Task(task_id(2), "pay the rent")
    assert infer_scenarios([labelled, plain]) == ["scenario a", f"like {task_id(2)}"]


def test_an_instruction_joins_the_scenario_of_the_nearest_one() -> None:
    texts = [
        "count mails from iris",
        "count notes tagged work",
        "count notes tagged home",
        "count mails from omar",
    ]
    found = infer_scenarios([Task(task_id(number), text) for number, text in enumerate(texts)])
    assert found == [f"like {task_id(number)}" for number in (0, 1, 1, 0)]


def test_words_that_were_arguments_may_differ() -> None:
    tasks = [Task(task_id(1), "text Bo Lee Smith"), Task(task_id(2), "text Al Van Ray")]
    assert len(set(infer_scenarios(tasks))) == 2
    assert len(set(infer_scenarios(tasks, {task_id(1): {"bo", "lee", "smith"}}))) == 1
