"""The choice of what is worth imitating."""

import msgspec

from tests.served import served, task_id
from trainer.experience.best import Chosen, choose
from trainer.experience.records import Drop, Served


def chosen(*tasks: Served, count: int = 1, makers: tuple[int, ...] = ()) -> Chosen:
    return choose(tasks, ["mails"] * len(tasks), {task_id(number) for number in makers}, count)


def numbers(found: Chosen) -> list[int]:
    return [served.id.int for served, _ in found.kept]


def test_the_success_with_the_fewest_tokens_is_taken() -> None:
    found = chosen(served(1, tokens=9), served(2, tokens=3), served(3, 0.9, tokens=1))
    assert (numbers(found), found.dropped) == ([2], [Drop.WEAK, Drop.SURPLUS])


def test_one_that_left_a_skill_is_worth_more_than_a_shorter_one() -> None:
    assert numbers(chosen(served(1, tokens=9), served(2, tokens=3), makers=(1,))) == [1]


def test_one_that_used_the_skill_it_was_offered_is_worth_more_than_a_shorter_one() -> None:
    used, ignored = served(1, tokens=9, offered=(1,), used=(1,)), served(2, tokens=3, offered=(1,))
    assert numbers(chosen(used, ignored)) == [1]


def test_short_tasks_that_use_skills_do_not_crowd_out_those_that_write_them() -> None:
    used, wrote = served(1, tokens=3, offered=(1,), used=(1,)), served(2, tokens=9)
    assert numbers(chosen(used, wrote, makers=(2,))) == [1, 2]


def test_each_family_gives_its_own_best_in_the_order_of_the_tasks() -> None:
    tasks = [served(1, tokens=9), served(2, tokens=3), served(3, tokens=4), served(4, tokens=5)]
    found = choose(tasks, ["a", "b", "b", "a"], (), 1)
    assert [(task.id.int, family) for task, family in found.kept] == [(2, "b"), (4, "a")]
    assert numbers(choose(tasks, ["a", "b", "b", "a"], (), 2)) == [1, 2, 3, 4]


def test_a_task_with_a_fault_is_no_example() -> None:
    assert chosen(served(1, fault=Drop.REWRITTEN)).dropped == [Drop.REWRITTEN]


def test_an_answer_without_code_or_cut_off_is_no_example() -> None:
    cut = served(1)
    turn = msgspec.structs.replace(cut.trajectory.turns[0], finish="length")
    cut = msgspec.structs.replace(cut, trajectory=msgspec.structs.replace(cut.trajectory, turns=(turn,)))
    found = chosen(cut, served(2, text="I would rather talk."), served(3))
    assert (numbers(found), found.dropped) == ([3], [Drop.CUT_OFF, Drop.CUT_OFF])
