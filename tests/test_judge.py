"""A judge scores finished tasks that bring no check of their own."""

import asyncio
from dataclasses import replace

import pytest

from app.db.models import TaskState
from app.errors import SettingError
from app.judge import Judge, NamedJudge, ask_judge, load_judge
from app.records import Trajectory
from app.runner.runner import Runner
from tests.ledger_project import OPTIONS, LedgerProject
from tests.scripted_engine import ScriptedEngine, block
from tests.trajectory_samples import trajectory

DONE = block("apis.supervisor.complete_task(answer=7)")


def load_answer_judge(*, expected: int, odd: bool = False) -> Judge:
    async def judge(trajectory: Trajectory) -> float | None:
        if odd:
            return float(trajectory.answer)
        return None if trajectory.answer is None else float(trajectory.answer == expected)

    return judge


def runner(project: LedgerProject, options: str) -> Runner:
    executor = project.executor(ScriptedEngine(project.tokenizer, script=lambda *_: DONE))
    judge = load_judge(f"{__name__}:load_answer_judge?{options}")
    return Runner(project.sessions, replace(executor, judge=judge).execute, OPTIONS)


@pytest.mark.parametrize(
    ("options", "check", "score", "source"),
    [
        ("expected=7", None, 1.0, "judge"),
        ("expected=8", None, 0.0, "judge"),
        ("expected=8", "score = 0.25", 0.25, "check"),
        ("expected=7&odd=true", None, None, None),
    ],
    ids=["right", "wrong", "a check counts instead", "outside of the range"],
)
async def test_a_finished_task_has_the_score_of_the_judge_unless_it_brings_a_check(
    project: LedgerProject, options: str, check: str | None, score: float | None, source: str | None
) -> None:
    async with runner(project, options):
        row = await project.ended(await project.submit(check_code=check))
    assert (row.state, row.score, row.failure) == (TaskState.DONE, score, None)
    assert (row.score_source, row.judged_by is not None) == (source, source == "judge")


async def test_a_judge_that_takes_too_long_leaves_a_task_without_a_score() -> None:
    async def judge(_: Trajectory) -> float | None:
        await asyncio.sleep(3600)
        return 1.0

    assert await ask_judge(NamedJudge("slow", "slow", judge), trajectory(), seconds=0.05) is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("wise", r"SAGE_JUDGE='wise': sage.judges has no 'wise'"),
        (f"{__name__}:load_answer_judge", "needs the option expected"),
        (f"{__name__}:load_answer_judge?expected=much", "'much' is not of type 'integer'"),
    ],
)
def test_a_setting_that_names_no_judge_stops_the_server_at_its_start(text: str, error: str) -> None:
    with pytest.raises(SettingError, match=error):
        load_judge(text)


def test_without_the_setting_nothing_judges() -> None:
    assert load_judge("") is None
