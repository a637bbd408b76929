"""A judge scores finished tasks that bring no check of their own."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import select

from app.base.errors import EngineError, SettingError
from app.base.judge import Judge, Judgement, ask_judge, load_judge
from app.base.values import Stop, Trajectory
from app.db import tables
from app.db.tables import TaskState
from app.skills import store as skills
from app.tasks.runner import Runner
from tests.support.ledger_policies import writing
from tests.support.ledger_project import OPTIONS, LedgerProject
from tests.support.scripted_engine import Script, ScriptedEngine, block
from tests.support.trajectory_samples import trajectory

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
    ],
    ids=["right", "wrong", "a check counts instead"],
)
async def test_a_finished_task_has_the_score_of_the_judge_unless_it_brings_a_check(
    project: LedgerProject, options: str, check: str | None, score: float | None, source: str | None
) -> None:
    async with runner(project, f"load_answer_judge?{options}"):
        row = await project.ended(await project.submit(check_code=check))
    assert (row.state, row.score, row.failure) == (TaskState.DONE, score, None)
    assert (row.score_source, row.judged_by is not None) == (source, source == "judge")


async def test_a_task_says_why_its_judge_gave_no_score(project: LedgerProject) -> None:
    async with runner(project, "load_answer_judge?expected=7&odd=true"):
        row = await project.ended(await project.submit())
    assert (row.state, row.score, row.judged_by) == (TaskState.DONE, None, None)
    assert row.failure == "the judge gave no score: its score 7.0 is not in [0, 1]"


async def test_skills_are_kept_and_replayed_whatever_a_judge_says(project: LedgerProject) -> None:
    async with runner(project, "load_constant_judge?score=0", writing):
        first = await project.ended(await project.submit("write hello into the ledger"))
        second = await project.ended(await project.submit("write goodbye into the ledger"))
    assert [(each.stop, each.score) for each in (first, second)] == [(Stop.COMPLETED, 0.0)] * 2
    async with project.sessions() as session:
        [made] = await skills.made_by(session, first.id)
        replays = await session.execute(select(tables.SkillReplay.task_id, tables.SkillReplay.skill_id))
        assert [tuple(each) for each in replays] == [(second.id, made.id)]


async def test_a_task_that_did_nothing_has_failed_whatever_a_judge_says(project: LedgerProject) -> None:
    async with runner(
        project, "load_constant_judge?score=0.3", lambda *_: block("apis.supervisor.complete_task()")
    ):
        row = await project.ended(await project.submit())
    assert (row.state, row.stop) == (TaskState.FAILED, Stop.NOTHING_DONE)
    assert (row.score, row.score_source) == (0.3, "judge")


def load_odd_judge(*, answer: str) -> Judge:
    async def judge(_: Trajectory) -> float | None:
        match answer:
            case "late":
                await asyncio.sleep(3600)
            case "refusal":
                raise EngineError("HTTP 401: set its key")
            case "own limit":
                raise TimeoutError
            case "defect":
                raise RuntimeError("key=secret")
            case "text":
                return "good"  # type: ignore[return-value]
        return float(answer)

    return judge


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("late", "it took longer than 0.05 s"),
        ("refusal", "HTTP 401: set its key"),
        ("own limit", "it raised TimeoutError; the log of the server has the reason"),
        ("defect", "it raised RuntimeError; the log of the server has the reason"),
        ("text", "it raised TypeError; the log of the server has the reason"),
        ("nan", "its score nan is not in [0, 1]"),
        ("-1", "its score -1.0 is not in [0, 1]"),
    ],
)
async def test_a_judge_that_fails_gives_no_score_and_a_reason(answer: str, problem: str) -> None:
    judge = load_judge(f"{__name__}:load_odd_judge?answer={answer}")
    assert judge is not None
    assert await ask_judge(judge, trajectory(), seconds=0.05) == Judgement(None, problem)


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
