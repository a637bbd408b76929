"""A candidate that the exam lets pass is rejected where it forgot what was learned before."""

from pathlib import Path

import pytest

from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.every_row import every_row
from tests.support.gated_run import NEW, SCENARIOS, GatedRun, lazy
from tests.support.practised_project import practised_project
from tests.support.task_results import result
from tests.support.training_project import ProgressRecorder
from trainer.evaluation.gate_decision import GateRules
from trainer.evaluation.local import Evaluator
from trainer.evaluation.metrics import TaskResult
from trainer.runs.candidate import open_evaluator
from trainer.runs.environment import open_run_environment
from trainer.runs.gate import Guarded
from trainer.runs.practice import guarded, look_at_forgotten


@pytest.fixture
async def run(sessions: Sessions, bare_sandbox: ForkedSandbox, tmp_path: Path) -> GatedRun:
    return await GatedRun(sessions, bare_sandbox, tmp_path).open()


@pytest.mark.slow
async def test_both_models_are_tried_on_the_gym_as_they_would_serve(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    project, progress = await practised_project(committed, database_url, tmp_path), ProgressRecorder()
    job = await project.job(kind="practice", environment="practice?api=sensors", gate_scenarios=30)
    async with open_run_environment(job, committed, progress) as environment:
        assert environment is not None
        async with open_evaluator(job, progress, committed, environment) as evaluator:
            found = await look_at_forgotten(4, 1, progress, evaluator, "base", "base")
    shown = found.figures["forgetting"]
    assert (found.refusal, shown["points"], shown["candidate"]["tasks"]) == ("", 0, 12)
    assert progress.parts[-1] == ("gym tasks", 24, 24)


class Guard:
    """Has found something already; records who was looked at."""

    def __init__(self, found: Guarded) -> None:
        self.found = found
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, evaluator: Evaluator, candidate: str, incumbent: str) -> Guarded:
        assert evaluator.environment is not None
        self.asked.append((candidate, incumbent))
        return self.found


FIGURES = {"forgetting": {"points": -7.5}}


async def test_a_candidate_that_is_better_in_the_exam_but_forgot_is_rejected_with_the_figures(
    run: GatedRun,
) -> None:
    guard = Guard(Guarded(FIGURES, "it forgot what it knew"))
    found = await run.evaluate(run.policies(new=run.expert), guard=guard)
    assert (found.state, found.evidence["verdict"], guard.asked) == (
        ReleaseState.REJECTED,
        "reject",
        [(NEW, "base")],
    )
    assert found.reason.startswith("it forgot what it knew; in the exam, it solves more scenarios")
    assert (found.evidence["forgetting"], found.evidence["difference"]["sgc"]["mean"]) == ({"points": -7.5}, 100)
    assert (await run.evaluate(run.policies(new=run.expert), guard=guard)).state is ReleaseState.REJECTED
    assert len(guard.asked) == 1, "the gate has decided"


async def test_a_candidate_that_forgot_nothing_passes_with_the_figures(run: GatedRun) -> None:
    found = await run.evaluate(run.policies(new=run.expert), guard=Guard(Guarded(FIGURES)))
    assert (found.state, found.evidence["forgetting"]) == (ReleaseState.PASSED, {"points": -7.5})


async def test_nothing_is_asked_about_a_candidate_that_the_exam_rejects(run: GatedRun) -> None:
    guard = Guard(Guarded(FIGURES))
    assert (await run.evaluate(run.policies(new=lazy), guard=guard)).state is ReleaseState.REJECTED
    assert guard.asked == []


@pytest.mark.parametrize("gate", ["exam", "canary"])
async def test_a_run_without_time_for_its_exam_leaves_a_candidate_that_says_so(gate: str, run: GatedRun) -> None:
    await run.open(gate=gate)
    found = await run.evaluate(None, no_time="its 2 hours ended before its exam")
    assert (found.decision, found.evidence["verdict"]) == ("waiting", "untested")
    assert found.reason.startswith("its 2 hours ended before its exam. give it more hours, and train again")
    assert (await run.active()).number == 1


async def test_live_tasks_decide_only_about_a_candidate_that_the_guard_lets_pass(run: GatedRun) -> None:
    few = GateRules(min_scenarios=SCENARIOS + 1)
    for refusal, state in (("it forgot", ReleaseState.REJECTED), ("", ReleaseState.PASSED)):
        await run.open(gate="canary", gate_scenarios=SCENARIOS + 1)
        guard = Guard(Guarded(FIGURES, refusal))
        found = await run.evaluate(run.policies(new=run.expert), rules=few, guard=guard)
        assert (found.state, found.evidence["forgetting"], len(guard.asked)) == (state, {"points": -7.5}, 1)
        assert "the exam has 4 scenarios to examine on, 5 are needed" in found.reason
        assert found.reason.startswith(refusal)


async def test_a_candidate_whose_guard_cannot_be_asked_waits(run: GatedRun) -> None:
    await run.open(gate="canary", gate_scenarios=0)
    found = await run.evaluate(None, guard=Guard(Guarded(FIGURES)))
    assert (found.decision, found.evidence["verdict"]) == ("waiting", "untested")
    assert found.reason.startswith("the run skips the evaluation (gate_scenarios=0). set gate_scenarios")


def solved(count: int, of: int) -> list[TaskResult]:
    """Each task is of a scenario."""
    return [result(f"s{number}", success=number < count) for number in range(of)]


def test_forgetting_is_a_loss_over_two_points_that_is_no_luck() -> None:
    rows = {  # solved by the candidate, by what serves, of so many; whether it is refused
        "nothing lost": (30, 25, 50, False),
        "two points that are sure": (380, 400, 1000, False),
        "a little more": (379, 400, 1000, True),
        "the loss of one of few": (5, 6, 10, False),
        "the loss of two of few": (4, 6, 10, False),
        "most of few": (1, 7, 10, True),
        "all": (0, 10, 10, True),
    }
    with every_row() as row:
        for name, (after, before, of, refused) in rows.items():
            with row(name):
                found = guarded(solved(after, of), solved(before, of))
                assert bool(found.refusal) is refused
                shown = found.figures["forgetting"]
                low, high = shown["interval"]
                assert shown["points"] == pytest.approx(100 * (after - before) / of)
                assert low <= shown["points"] <= high
                assert shown["candidate"]["tgc"]["mean"] == pytest.approx(100 * after / of)
                assert shown["incumbent"]["tgc"]["mean"] == pytest.approx(100 * before / of)
    lost = guarded(solved(0, 10), solved(10, 10)).refusal
    assert lost == (
        "it forgot what it knew: it solves 100.0 points fewer tasks of the gym than before, by the 95 % interval "
        "100.0 to 100.0"
    )
