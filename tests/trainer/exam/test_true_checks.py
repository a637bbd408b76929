"""Checks that are true whatever happens, and tasks without one, promote nothing in a project's own exam."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.base.run_settings import MIN_SCENARIOS, RunSettings
from app.base.settings import Settings
from app.db.tables import ExamSource, ReleaseState
from app.projects import store as projects
from app.releases.exams import store as exams
from app.runs import store as runs
from tests.support.gated_run import NEW, Policies, Run, lazy
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import Script, ScriptedEngine, block
from trainer.evaluation.local import Evaluator
from trainer.run_job import Job
from trainer.runs.environment import open_run_environment
from trainer.runs.gate import CandidateAdapter, GateResult, evaluate_candidate

TRUE = "score = 1.0"
ANSWERED = "score = float(answer == '{0}')"
WRITE = (
    "apis.ledger.list_entries()\napis.ledger.add_entry(text='{0}')\napis.supervisor.complete_task(answer='{0}')"
)


def expert(prompt: str, turn: int) -> str:  # noqa: ARG001
    return block(WRITE.format(_word(prompt)))


def often_cut_off(prompt: str, turn: int) -> str:
    """Never completes every third task."""
    return block("print('wait')") if int(_word(prompt)[4:]) % 3 == 0 else expert(prompt, turn)


def _word(prompt: str) -> str:
    return prompt.rpartition("write ")[2].split()[0]


async def serve(project: LedgerProject, count: int, check: str, first: int = 0) -> None:
    """Solved tasks, each a scenario of its own."""
    async with project.runner(ScriptedEngine(project.tokenizer, script=expert)):
        words = [f"word{number}" for number in range(first, first + count)]
        ids = [
            await project.submit(f"write {word} into the ledger", scenario=word, check_code=check.format(word))
            for word in words
        ]
        for task_id in ids:
            await project.ended(task_id)


async def make_exam(project: LedgerProject) -> None:
    async with project.sessions.begin() as session:
        await exams.put(
            session, project.id, "mine", ExamSource.LOG, await exams.from_log(session, project.id, tasks_each=1)
        )


async def gated(project: LedgerProject, on: str, *, base: Script, new: Script) -> GateResult:
    settings = RunSettings(environment=f"exam?name=mine&on={on}", gate_scenarios=100)
    async with project.sessions.begin() as session:
        run_id = (await runs.create(session, project.id, settings)).id
    job = Job(
        id=run_id,
        project_id=project.id,
        project="demo",
        settings=settings,
        directory=Path(),
        deployment=Settings(),
    )
    policies = Policies({"base": base, NEW: new}, lambda script: ScriptedEngine(project.tokenizer, script=script))
    agent = Agent(policies, project.tokenizer, Compact(), project.sandbox, RolloutLimits(turns=1))
    async with open_run_environment(job, project.sessions, Run()) as opened:
        assert opened is not None
        opened = await opened.checked()
        evaluator = Evaluator(agent, policies, opened.environment, Path("/adapters"), about=opened.about)
        candidate = CandidateAdapter(project_id=project.id, run_id=run_id, model=NEW, settings=settings)
        return await evaluate_candidate(project.sessions, candidate, evaluator, progress=Run())


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [TRUE, "score = float(answer is not None)", "score = float(len(apis.ledger.list_entries()) >= 0)"]
)
async def test_a_policy_that_completes_at_once_gains_nothing_where_that_is_enough(
    project: LedgerProject, check: str
) -> None:
    await serve(project, MIN_SCENARIOS, TRUE)
    async with project.sessions.begin() as session:
        logged = await exams.from_log(session, project.id)
        await exams.put(
            session, project.id, "mine", ExamSource.LOG, [replace(each, check_code=check) for each in logged]
        )
    result = await gated(project, "recorded", base=often_cut_off, new=lazy)
    assert (result.state, result.decision) == (ReleaseState.CANDIDATE, "waiting")
    assert result.evidence["reason"] == (
        "the exam has 0 scenarios to examine on, 30 are needed; tasks left out: 30 that doing nothing solves "
        "(checks that are true whatever happens)"
    )
    assert result.evidence["next"].startswith("mend the checks that pass when nothing is done, have more tasks")
    assert result.evidence["evaluation"]["exam"]["true_whatever_happens"] == MIN_SCENARIOS


async def test_the_other_tasks_decide_and_the_reason_tells_of_those_left_out(project: LedgerProject) -> None:
    await serve(project, MIN_SCENARIOS, ANSWERED)
    await serve(project, 3, TRUE, first=MIN_SCENARIOS)
    await make_exam(project)
    result = await gated(project, "recorded", base=often_cut_off, new=expert)
    assert result.state is ReleaseState.PASSED, result.reason
    assert result.evidence["difference"]["scenarios"] == MIN_SCENARIOS
    assert result.evidence["reason"].startswith("it solves more scenarios: ")
    assert "; tasks left out: 3 that doing nothing solves" in result.evidence["reason"]


@pytest.mark.parametrize(
    ("on", "unjudged"), [("staging", "without a check"), ("live", "without a check or a record that only read")]
)
async def test_an_exam_without_checks_says_that_it_lacks_them(
    project: LedgerProject, on: str, unjudged: str
) -> None:
    await serve(project, 1, TRUE)
    async with project.sessions.begin() as session:
        staging = {"ledger": {"server": "https://staging.test", "stateless": True}}
        await projects.change_settings(session, project.id, {"staging": staging})
        logged = await exams.from_log(session, project.id)
        await exams.put(
            session, project.id, "mine", ExamSource.LOG, [replace(each, check_code=None) for each in logged]
        )
    result = await gated(project, on, base=lazy, new=expert)
    assert result.state is ReleaseState.CANDIDATE
    assert result.evidence["reason"] == (
        f"the exam has 0 scenarios to examine on, 30 are needed; tasks left out: 1 {unjudged}"
    )
    assert result.evidence["next"].startswith(
        "make an exam with more tasks that have a check (POST /v1/exams), or"
    )
