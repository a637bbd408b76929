"""Tasks that cannot go on for now: they go on later, and it costs them nothing."""

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from app.base.errors import AdapterError, AppError, EngineError, SandboxError
from app.db import results, tables
from app.db.tables import ReleaseState, TaskState
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Observation
from app.sandbox.session import ForkedSession
from app.tasks import journal
from app.tasks.runner import Runner, RunnerOptions
from tests.support.ledger_policies import writing
from tests.support.ledger_project import LedgerProject, until
from tests.support.scripted_engine import Answer, ScriptedEngine, block

OPTIONS = RunnerOptions(concurrency=2, lease_seconds=3, poll_seconds=0.05, postpone_seconds=0.2)


class Failing(ScriptedEngine):
    """Fails as long as it has an `error`, when it is asked for the second turn."""

    error: AppError | None = None
    failures = 0

    async def _next(self, prompt: str) -> Answer:
        if self.error is not None and "write_entry" in prompt:
            self.failures += 1
            raise self.error
        return await super()._next(prompt)


@pytest.mark.parametrize("error", [EngineError("no model server answers"), AdapterError("f00d is damaged")])
async def test_tasks_under_way_wait_for_their_model_and_end_as_if_nothing_had_happened(
    project: LedgerProject, error: AppError
) -> None:
    engine = Failing(project.tokenizer, script=writing)
    engine.error = error
    async with project.runner(engine, OPTIONS):
        task_id = await project.submit()
        await until(lambda: engine.failures >= 3)
        assert (await project.row(task_id)).state == TaskState.RUNNING
        engine.error = None
        row = await project.ended(task_id)
    assert (row.state, row.attempt, row.deaths, row.failure) == (TaskState.DONE, 1, 0, None)
    assert len(project.ledger.entries) == 1


async def _give_way(project: LedgerProject, task_id: UUID, state: ReleaseState) -> None:
    """The task's release gets another state, and the next one is active."""
    async with project.sessions.begin() as session:
        release = tables.Release(id=(await project.row(task_id)).release_id, state=state)
        await session.merge(release)
        session.add(tables.Release(project_id=project.id, number=2, state=ReleaseState.ACTIVE))


async def test_a_task_of_a_release_that_no_longer_serves_fails_if_its_adapter_cannot_be_loaded(
    project: LedgerProject,
) -> None:
    engine = Failing(project.tokenizer, script=writing)
    async with project.runner(engine, OPTIONS):
        engine.error = EngineError("no model server answers")
        task_id = await project.submit()
        await until(lambda: engine.failures >= 1)
        await _give_way(project, task_id, ReleaseState.RETIRED)
        engine.error = AdapterError("f00d is damaged")
        row = await project.ended(task_id)
    assert (row.state, row.failure, row.turns) == (TaskState.FAILED, "f00d is damaged", 1)


async def test_a_task_of_a_canary_waits_until_its_adapter_can_be_loaded(project: LedgerProject) -> None:
    engine = Failing(project.tokenizer, script=writing)
    async with project.runner(engine, OPTIONS):
        engine.error = EngineError("no model server answers")
        task_id = await project.submit()
        await until(lambda: engine.failures >= 1)
        await _give_way(project, task_id, ReleaseState.CANARY)
        engine.error = AdapterError("f00d is damaged")
        before = engine.failures
        await until(lambda: engine.failures >= before + 3)
        engine.error = None
        row = await project.ended(task_id)
    assert (row.state, row.attempt, row.failure) == (TaskState.DONE, 1, None)


async def test_while_tasks_of_a_project_cannot_go_on_no_other_of_it_begins(project: LedgerProject) -> None:
    engine = Failing(project.tokenizer, script=writing)
    engine.error = EngineError("no model server answers")
    async with project.runner(engine, OPTIONS):
        first = await project.submit()
        await until(lambda: engine.failures >= 1)
        others = [await project.submit(f"write w{number} into the ledger") for number in range(8)]
        await until(lambda: engine.failures >= 4)
        begun = [task_id for task_id in others if (await project.row(task_id)).state != TaskState.ACCEPTED]
        assert len(begun) <= engine.failures
        engine.error = None
        assert {(await project.ended(task_id)).state for task_id in (first, *others)} == {TaskState.DONE}


async def test_nothing_is_claimed_while_no_model_server_answers(project: LedgerProject) -> None:
    runner = project.runner(ScriptedEngine(project.tokenizer, script=writing), OPTIONS)
    answering = False
    runner.answers = lambda: answering
    async with runner:
        task_id = await project.submit()
        await asyncio.sleep(0.5)
        assert (await project.row(task_id)).state == TaskState.ACCEPTED
        answering = True
        assert (await project.ended(task_id)).attempt == 1


async def test_a_task_whose_sandbox_always_fails_fails_in_the_end_and_keeps_what_it_did(
    project: LedgerProject,
) -> None:
    executor = project.executor(ScriptedEngine(project.tokenizer, script=writing))
    broken = replace(executor, agent=replace(executor.agent, sandbox=ForkedSandbox(bwrap=False)))
    async with Runner(project.sessions, broken.execute, OPTIONS):
        task_id = await project.submit()
        row = await project.ended(task_id)
    assert (row.state, row.failure) == (TaskState.FAILED, "the sandbox is not started")
    assert (row.attempt, row.deaths, row.sandbox_failures) == (1, 0, 3)
    async with project.sessions() as session:
        assert len((await results.of_task(session, task_id)).turns) == row.turns == 1


async def test_a_sandbox_that_breaks_in_a_turn_repeats_no_call_of_it(
    project: LedgerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, broken = ForkedSession.run, list[str]()

    async def breaking(session: ForkedSession, code: str) -> Observation:
        observation = await run(session, code)
        if not broken:
            broken.append(code)
            raise SandboxError("no process can be started")
        return observation

    monkeypatch.setattr(ForkedSession, "run", breaking)
    monkeypatch.setattr(journal, "_BATCH_SECONDS", 60)
    answers = block("print(apis.ledger.list_entries())"), block("apis.supervisor.complete_task()")
    async with project.runner(ScriptedEngine(project.tokenizer, *answers), OPTIONS):
        row = await project.ended(await project.submit())
    assert (row.state, row.failure, row.calls, row.attempt) == (TaskState.DONE, None, 1, 1)
    assert (len(broken), project.ledger.reads) == (1, 1)
    assert [kind for kind, _ in await project.events(row.id)].count("call") == 1


async def test_a_task_that_fails_keeps_the_turns_and_calls_it_made(project: LedgerProject) -> None:
    def broken(prompt: str, turn: int) -> Answer:
        if turn == 1:
            raise ZeroDivisionError
        return writing(prompt, turn)

    async with project.runner(ScriptedEngine(project.tokenizer, script=broken), OPTIONS):
        task_id = await project.submit()
        row = await project.ended(task_id)
    assert (row.state, row.stop, row.turns, row.calls) == (TaskState.FAILED, None, 1, 1)
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert [call.api for call in trajectory.calls] == ["ledger.add_entry"]
    assert trajectory.detail == row.failure
