"""Tasks that fail, and checks that break: of each only the one task is affected."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import TimeoutError as NoConnectionError

from app.agent.rollout import StopSignal
from app.base.errors import EngineRefusalError
from app.db.tables import TaskState
from app.tasks import queue
from tests.support.ledger_policies import SKILL, writing
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import Answer, ScriptedEngine, block
from tests.support.single_connection import single_connection


async def test_a_refusal_by_the_engine_fails_the_task_with_its_message(project: LedgerProject) -> None:
    async with project.runner(ScriptedEngine(project.tokenizer, EngineRefusalError("the prompt is too long"))):
        row = await project.ended(await project.submit())
    assert (row.state, row.failure) == (TaskState.FAILED, "the prompt is too long")


async def test_a_bug_fails_one_task_without_its_secrets_and_not_the_next(project: LedgerProject) -> None:
    def broken(prompt: str, turn: int) -> Answer:
        if "break" in prompt:
            raise ZeroDivisionError("secret")
        return writing(prompt, turn)

    async with project.runner(ScriptedEngine(project.tokenizer, script=broken)):
        bad = await project.ended(await project.submit("break it"))
        good = await project.ended(await project.submit())
    assert (bad.state, good.state) == (TaskState.FAILED, TaskState.DONE)
    assert bad.failure is not None
    assert "secret" not in bad.failure
    assert (await project.events(bad.id))[-1][0] == "done"


@pytest.mark.parametrize(
    ("check", "score", "failure"),
    [
        ("entries = apis.ledger.list_entries()\nscore = len(entries) / 2 if answer == {'n': 1} else 0", 0.5, None),
        ("score = 1 / 0", 0.0, "ZeroDivisionError"),
        ("print('nothing set')", 0.0, "score"),
        ("score = 2", 0.0, "between 0 and 1"),
        ("apis.ledger.add_entry(text='cheat')\nscore = 1", 0.0, "only reading"),
    ],
)
async def test_a_check_scores_the_task_with_read_access_only(
    project: LedgerProject, check: str, score: float | None, failure: str | None
) -> None:
    answers = (block(SKILL.format(word="hi")), block("apis.supervisor.complete_task(answer={'n': 1})"))
    async with project.runner(ScriptedEngine(project.tokenizer, *answers)):
        row = await project.ended(await project.submit(check_code=check))
    assert (row.state, row.score) == (TaskState.DONE, score)
    assert failure is None or failure in (row.failure or "")
    assert len(project.ledger.entries) == 1


async def test_a_task_without_a_connection_is_left_to_be_resumed(
    project: LedgerProject, database_url: str
) -> None:
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with single_connection(database_url) as database:
        executor = replace(project.executor(engine), sessions=database.sessions)
        task_id = await project.submit()
        async with project.sessions.begin() as session:
            task = await queue.claim(session, "me", 30)
        assert task is not None
        async with database.starved():
            with pytest.raises(NoConnectionError):
                await executor.execute(task, "me", StopSignal())
    assert (await project.row(task_id)).state == TaskState.RUNNING
