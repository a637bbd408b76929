"""A judge scores finished tasks that bring no check of their own."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import select

from app.db import models, skills
from app.db.models import TaskState
from app.errors import SettingError
from app.judge import Judge, NamedJudge, ask_judge, load_judge
from app.records import Stop, Trajectory
from app.runner.runner import Runner
from tests.ledger_policies import writing
from tests.ledger_project import OPTIONS, LedgerProject
from tests.scripted_engine import Script, ScriptedEngine, block
from tests.trajectory_samples import trajectory

DONE = block("apis.supervisor.complete_task(answer=7)")


def load_answer_judge(*, expected: int, odd: bool = False) -> Judge:
    async def judge(trajectory: Trajectory) -> float | None:
        if odd:
            return float(trajectory.answer)
        return None if trajectory.answer is None else float(trajectory.answer == expected)

    return judge


def load_constant_judge(*, score: float) -> Judge:
    async def judge(_: Trajectory) -> float | None:
        return score

    return judge


def runner(project: LedgerProject, judge: str, script: Script = lambda *_: DONE) -> Runner:
    executor = project.executor(ScriptedEngine(project.tokenizer, script=script))
    return Runner(project.sessions, replace(executor, judge=load_judge(f"{__name__}:{judge}")).execute, OPTIONS)


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
    async with runner(project, f"load_answer_judge?{options}"):
        row = await project.ended(await project.submit(check_code=check))
    assert (row.state, row.score, row.failure) == (TaskState.DONE, score, None)
    assert (row.score_source, row.judged_by is not None) == (source, source == "judge")


async def test_skills_are_kept_and_replayed_whatever_a_judge_says(project: LedgerProject) -> None:
    async with runner(project, "load_constant_judge?score=0", writing):
        first = await project.ended(await project.submit("write hello into the ledger"))
        second = await project.ended(await project.submit("write goodbye into the ledger"))
    assert [(each.stop, each.score) for each in (first, second)] == [(Stop.COMPLETED, 0.0)] * 2
    async with project.sessions() as session:
        [made] = await skills.made_by(session, first.id)
        replays = await session.execute(select(models.SkillReplay.task_id, models.SkillReplay.skill_id))
        assert [tuple(each) for each in replays] == [(second.id, made.id)]


async def test_a_task_that_did_nothing_has_failed_whatever_a_judge_says(project: LedgerProject) -> None:
    async with runner(
        project, "load_constant_judge?score=0.3", lambda *_: block("apis.supervisor.complete_task()")
    ):
        row = await project.ended(await project.submit())
    assert (row.state, row.stop) == (TaskState.FAILED, Stop.NOTHING_DONE)
    assert (row.score, row.score_source) == (0.3, "judge")


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
