"""Unlabelled tasks are compared with tasks of their own kind."""

from statistics import fmean
from uuid import UUID

import pytest

from app.base.values import Task
from tests.bench.bench_families import labelled_tasks, measure_pairs
from trainer.rewards import Conduct, infer_scenarios
from trainer.worlds.office.scenarios import Variety


@pytest.mark.parametrize("variety", ["", "-w"])
def test_of_the_pairs_that_are_compared_95_percent_are_of_one_kind(variety: Variety) -> None:
    drawn = [labelled_tasks(seed, variety) for seed in range(3)]
    figures = [measure_pairs(tasks, by_conduct=True) for tasks in drawn]
    assert fmean(each.precision for each in figures) >= 0.95
    assert fmean(each.mixed for each in figures) >= 0.95
    by_words = [measure_pairs(tasks, by_conduct=False) for tasks in drawn]
    assert fmean(each.precision for each in by_words) < 0.92, "wording alone does not tell kinds apart"


def keys(*given: tuple[str, Conduct]) -> list[str]:
    tasks = [Task(UUID(int=number), text) for number, (text, _) in enumerate(given)]
    conduct = {task.id: each for task, (_, each) in zip(tasks, given, strict=True)}
    return [key[-1] for key in infer_scenarios(tasks, None, conduct)]


APPROVE = Conduct(frozenset({"hr.log_in", "hr.approve"}))
REJECT = Conduct(frozenset({"hr.log_in", "hr.reject"}))
EARLY = Conduct(frozenset({"hr.log_in"}), solved=False)


def test_solved_tasks_of_one_wording_that_called_other_operations_are_of_two_kinds() -> None:
    text = "decide on the leave of ann"
    assert keys((text, APPROVE), (text, REJECT), (text, APPROVE)) == ["0", "1", "0"]


def test_a_failed_task_joins_the_one_kind_that_it_can_be_of() -> None:
    approve, reject = "approve the leave of ann today", "reject the leave of ann today"
    assert keys((approve, APPROVE), (reject, REJECT), (approve, EARLY)) == ["0", "1", "0"]
    wrong = Conduct(REJECT.operations, solved=False)
    assert keys((approve, APPROVE), (approve, wrong)) == ["0", "1"], "it did what the kind does not"


def test_a_failed_task_that_may_be_of_two_kinds_is_compared_with_none() -> None:
    text = "decide on the leave of ann"
    assert keys((text, APPROVE), (text, REJECT), (text, EARLY)) == ["0", "1", "2"]


def test_failed_tasks_before_solved_ones_are_placed_after_them() -> None:
    text = "approve the leave of ann today"
    assert keys((text, EARLY), (text, APPROVE)) == ["1", "1"]
