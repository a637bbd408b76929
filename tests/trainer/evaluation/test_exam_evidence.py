"""Why the results of an exam decide nothing, in words."""

import msgspec
import pytest

from app.base.values import Json
from tests.support.task_results import chains, result
from trainer.evaluation.local import PairedResults
from trainer.evaluation.metrics import TaskResult
from trainer.runs.gate import UndecidedError, check_decidable, left_out


def results(*, unknown: int = 0, known: int = 40, on: str = "", **exam: Json) -> PairedResults:
    settings: dict[str, Json] = {"exam": {"on": on, **exam}} if on else {}
    solved = (msgspec.structs.replace(each, template=each.scenario) for each in chains([True] * known))
    tasks = [*solved, *(result(f"u{number}", known=False) for number in range(unknown))]
    return PairedResults(candidate=tasks, incumbent=tasks, settings=settings).only_known()


@pytest.mark.parametrize(
    ("on", "why"), [("recorded", "asked for what was never recorded"), ("live", "tried to write")]
)
def test_unknown_results_are_said_to_be_so_with_the_cause_that_trials_there_have(on: str, why: str) -> None:
    with pytest.raises(UndecidedError) as raised:
        check_decidable(results(unknown=40, on=on), 30)
    assert str(raised.value) == (
        f"the results of 50% of the scenarios are known, 80% are needed: the others {why}"
    )


def test_an_exam_of_which_nothing_is_left_is_too_small_and_not_unknown() -> None:
    empty = results(known=0, on="staging", tasks_left_out=200, true_whatever_happens=3)
    assert empty.settings["coverage"] == 1
    with pytest.raises(UndecidedError) as raised:
        check_decidable(empty, 30)
    assert str(raised.value) == (
        "the exam has 0 scenarios to examine on, 30 are needed; tasks left out: 200 without a check, "
        "3 that doing nothing solves (checks that are true whatever happens)"
    )
    advice = "mend the checks that pass when nothing is done, make an exam with more tasks that have a check"
    assert raised.value.advice.startswith(advice)


def test_the_smaller_part_of_an_exam_decides_nothing_however_well_it_is_known() -> None:
    with pytest.raises(UndecidedError) as raised:
        check_decidable(results(on="recorded", kinds=200, kinds_left_out=160, tasks_left_out=320), 30)
    assert str(raised.value) == (
        "the exam can be tried on tasks of 40 of its 200 kinds, 50% are needed; tasks left out: 320 without a "
        "record that solved it by today's operations"
    )
    check_decidable(results(on="recorded", kinds=80, kinds_left_out=40, tasks_left_out=40), 30)


def test_many_scenarios_of_few_kinds_decide_nothing() -> None:
    def of_kinds(count: int) -> PairedResults:
        tasks = [result(f"s{number}", template=f"kind {number % count}", success=True) for number in range(40)]
        return PairedResults(candidate=tasks, incumbent=tasks, settings={"exam": {"on": "recorded"}}).only_known()

    check_decidable(of_kinds(10), 30)
    with pytest.raises(UndecidedError) as raised:
        check_decidable(of_kinds(9), 30)
    assert str(raised.value) == "the exam has tasks of 9 kinds to examine on, 10 are needed"


def test_an_exam_of_which_nobody_solved_a_task_decides_nothing() -> None:
    """Its checks may be such that nothing passes them."""

    def solved(candidate: bool, incumbent: bool, settings: dict[str, Json]) -> PairedResults:
        def side(solves: bool) -> list[TaskResult]:
            return [result(f"s{each}", template=f"kind {each}", success=solves and not each) for each in range(40)]

        found = PairedResults(candidate=side(candidate), incumbent=side(incumbent), settings=settings)
        return found.only_known()

    for one, other in ((True, False), (False, True)):
        check_decidable(solved(one, other, {"exam": {"on": "staging"}}), 30)
    check_decidable(solved(False, False, {}), 30)
    with pytest.raises(UndecidedError) as raised:
        check_decidable(solved(False, False, {"exam": {"on": "staging"}}), 30)
    assert str(raised.value) == "no release solved a task of the exam, so it compares nothing"
    assert raised.value.advice == "mend the checks if nothing can pass them"


def test_results_that_are_many_and_known_decide() -> None:
    check_decidable(results(unknown=1), 30)
    assert left_out(results()) == ""
