"""Selection of the best served tasks for supervised training."""

import msgspec

from tests.support.scored_tasks import scored, task_id
from trainer.rewards import DropReason, ScoredTask, Selected, select_best


def select(*tasks: ScoredTask, count: int = 1, makers: tuple[int, ...] = ()) -> Selected[str]:
    return select_best(tasks, ["mails"] * len(tasks), {task_id(number) for number in makers}, count)


def numbers(found: Selected[str]) -> list[int]:
    return [task.id.int for task, _ in found.kept]


def test_the_success_with_the_fewest_tokens_is_selected() -> None:
    found = select(scored(1, tokens=9), scored(2, tokens=3), scored(3, 0.9, tokens=1))
    assert (numbers(found), found.dropped) == ([2], [DropReason.UNSUCCESSFUL, DropReason.SURPLUS])


def test_a_success_that_made_a_skill_is_preferred_to_a_shorter_one() -> None:
    assert numbers(select(scored(1, tokens=9), scored(2, tokens=3), makers=(1,))) == [1]


def test_a_success_that_used_an_offered_skill_is_preferred_to_a_shorter_one() -> None:
    used, ignored = scored(1, tokens=9, offered=(1,), used=(1,)), scored(2, tokens=3, offered=(1,))
    assert numbers(select(used, ignored)) == [1]


def test_short_tasks_that_use_skills_do_not_crowd_out_those_that_write_them() -> None:
    used, wrote = scored(1, tokens=3, offered=(1,), used=(1,)), scored(2, tokens=9)
    assert numbers(select(used, wrote, makers=(2,))) == [1, 2]


def test_each_scenario_gives_its_own_best_in_the_order_of_the_tasks() -> None:
    tasks = [
        scored(1, tokens=9),
        scored(2, tokens=3),
        scored(3, tokens=4),
        scored(4, tokens=5),
    ]
    found = select_best(tasks, ["a", "b", "b", "a"], (), 1)
    assert [(task.id.int, scenario) for task, scenario in found.kept] == [(2, "b"), (4, "a")]
    assert numbers(select_best(tasks, ["a", "b", "b", "a"], (), 2)) == [1, 2, 3, 4]


def test_an_unusable_task_is_no_example() -> None:
    assert select(scored(1, unusable=DropReason.SECRET)).dropped == [DropReason.SECRET]


def test_an_answer_without_code_or_cut_off_is_no_example() -> None:
    cut = scored(1)
    turn = msgspec.structs.replace(cut.trajectory.turns[0], finish="length")
    cut = msgspec.structs.replace(cut, trajectory=msgspec.structs.replace(cut.trajectory, turns=(turn,)))
    found = select(cut, scored(2, text="No code here."), scored(3))
    assert (numbers(found), found.dropped) == ([3], [DropReason.CUT_OFF, DropReason.CUT_OFF])
