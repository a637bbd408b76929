"""Calls that wait for a person: the task is suspended, and continues with the decision."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.agent.stop_signal import StopSignal
from app.db import apis, models, task_queue, trajectories
from app.db.database import Sessions
from app.db.models import TaskState
from app.records import Stop
from app.runner.approval_expiry import ApprovalExpiry
from app.runner.runner import Runner, RunnerOptions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.api_app import problem
from tests.approving import COMPLETE, WRITES, ApprovingProject, open_approving_project
from tests.ledger_project import until
from tests.scripted_engine import ScriptedEngine, block

WRITE = "print(apis.ledger.add_entry(text='one'))"
CAUGHT = """
try:
    apis.ledger.add_entry(text='one')
except PermissionError as error:
    print('refused:', error)
"""


@pytest.fixture
async def demo(
    committed: Sessions, database_url: str, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[ApprovingProject]:
    async with open_approving_project(committed, database_url, bare_sandbox, tmp_path) as opened:
        yield opened


async def observations(demo: ApprovingProject, task_id: Any) -> list[str]:
    async with demo.project.sessions() as session:
        return [turn.observation for turn in (await trajectories.of_task(session, task_id)).turns]


async def test_nothing_waits_unless_the_project_or_the_document_asks_for_it(demo: ApprovingProject) -> None:
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(WRITE)):
        assert (await demo.project.ended(task_id)).stop == Stop.COMPLETED
    assert demo.written() == ["one"]


async def test_an_approved_call_is_made_once_by_whichever_runner_comes_then(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(WRITE)):
        approval = await demo.waiting(task_id)
        row = await demo.project.row(task_id)
    assert (row.owner, row.lease_until, row.attempt, demo.written()) == (None, None, 0, [])
    assert approval["operation"] == "ledger.add_entry"
    async with demo.project.runner(demo.engine(WRITE)) as runner:
        await asyncio.sleep(0.3)
        assert (runner.running, demo.written()) == (0, []), "no runner claims a task that waits"
        decided = await demo.decide(approval, "approve", "fine")
        row = await demo.project.ended(task_id)
    assert (decided["state"], decided["reason"], decided["decided_by"]) == ("approved", "fine", "key test admin")
    assert (row.state, row.stop, row.attempt, row.calls) == (TaskState.DONE, Stop.COMPLETED, 1, 1)
    assert demo.written() == ["one"]
    assert "{'id': 1}" in (await observations(demo, task_id))[0]


async def test_the_agent_reads_why_a_call_was_refused_and_goes_on(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(CAUGHT, "print(len(apis.ledger.list_entries()))")):
        await demo.decide(await demo.waiting(task_id), "refuse", "not on Sundays")
        assert (await demo.project.ended(task_id)).stop == Stop.COMPLETED
    first, second, _ = await observations(demo, task_id)
    assert "refused: ledger.add_entry was refused by a person: not on Sundays" in first
    assert "0" in second
    assert demo.written() == []


async def test_after_the_time_out_the_task_continues_without_the_call(demo: ApprovingProject) -> None:
    await demo.rules({**WRITES, "timeout_seconds": 1})
    task_id = await demo.project.submit()
    async with (
        demo.project.runner(demo.engine(CAUGHT)),
        ApprovalExpiry(demo.project.sessions, pause=0.05),
        ApprovalExpiry(demo.project.sessions, pause=0.05),
    ):
        approval = await demo.waiting(task_id)
        await demo.project.ended(task_id)
    assert (
        "refused: ledger.add_entry was not called: nobody approved it in time"
        in (await observations(demo, task_id))[0]
    )
    late = await demo.api.client.post(f"/v1/approvals/{approval['id']}", json={"decision": "approve"})
    assert late.status_code == 409
    assert "already expired" in str(problem(late)["detail"])
    assert demo.written() == []


async def test_a_decision_after_the_time_out_is_refused_before_anything_noticed_it(demo: ApprovingProject) -> None:
    await demo.rules({**WRITES, "timeout_seconds": 1})
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(WRITE)):
        approval = await demo.waiting(task_id)
        await asyncio.sleep(1.1)
    late = await demo.api.client.post(f"/v1/approvals/{approval['id']}", json={"decision": "approve"})
    assert late.status_code == 409


async def test_a_task_that_waits_is_cancelled_at_once(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(WRITE)):
        approval = await demo.waiting(task_id)
    cancelled = await demo.api.client.post(f"/v1/tasks/{task_id}/cancel")
    assert (cancelled.json()["state"], cancelled.json()["approval"]) == ("cancelled", None)
    kinds = [kind for kind, _ in await demo.project.events(task_id)]
    assert kinds == ["turn", "approval", "done"]
    shown = (await demo.api.client.get(f"/v1/approvals/{approval['id']}")).json()
    assert shown["state"] == "withdrawn"
    decision = await demo.api.client.post(f"/v1/approvals/{approval['id']}", json={"decision": "approve"})
    assert decision.status_code == 409


async def test_of_two_writes_in_one_turn_the_first_is_not_sent_again(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = "for text in ('one', 'two'):\n    print(apis.ledger.add_entry(text=text))"
    async with demo.project.runner(demo.engine(code)):
        await demo.decide(await demo.waiting(task_id), "approve")
        await demo.until_written(1)
        await demo.decide(await demo.waiting(task_id), "approve")
        row = await demo.project.ended(task_id)
    assert demo.written() == ["one", "two"]
    assert (row.stop, row.calls, row.attempt) == (Stop.COMPLETED, 2, 1)
    assert "{'id': 1}\n{'id': 2}" in (await observations(demo, task_id))[0]


async def test_more_suspensions_than_runners_may_die_do_not_end_a_task(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    texts = [str(number) for number in range(12)]
    code = f"for text in {texts}:\n    apis.ledger.add_entry(text=text)"
    async with demo.project.runner(demo.engine(code)):
        for number in range(len(texts)):
            await demo.until_written(number)
            await demo.decide(await demo.waiting(task_id), "approve")
        row = await demo.project.ended(task_id)
    assert (row.state, demo.written()) == (TaskState.DONE, texts)


async def test_calls_inside_a_skill_wait_and_are_refused_alike(demo: ApprovingProject) -> None:
    made = (
        "def write_entry(text: str) -> int:\n    return apis.ledger.add_entry(text=text)['id']\nwrite_entry('{}')"
    )
    caught = "try:\n    print(write_entry('{}'))\nexcept PermissionError as error:\n    print('refused:', error)"

    def script(prompt: str, turn: int) -> str:
        word = prompt.partition("write ")[2].split()[0]
        return COMPLETE if turn else block((caught if "skills:" in prompt else made).format(word))

    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer, script=script)):
        await demo.project.ended(await demo.project.submit("write hello into the ledger"))
        await demo.rules(WRITES)
        second, third = [
            await demo.project.submit(f"write {word} into the ledger") for word in ("goodbye", "later")
        ]
        await demo.decide(await demo.waiting(second), "approve")
        await demo.decide(await demo.waiting(third), "refuse", "enough")
        await demo.project.ended(second)
        await demo.project.ended(third)
    assert demo.written() == ["hello", "goodbye"]
    assert "2" in (await observations(demo, second))[0]
    assert "refused: ledger.add_entry was refused by a person: enough" in (await observations(demo, third))[0]
    used = (await demo.api.client.get(f"/v1/tasks/{second}")).json()["skills"]["used"]
    assert [skill["name"] for skill in used] == ["write_entry"]


async def test_reads_of_the_same_turn_are_answered_as_before_the_wait(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = "before = len(apis.ledger.list_entries())\napis.ledger.add_entry(text='one')\nprint('before:', before)"
    async with demo.project.runner(demo.engine(code)):
        approval = await demo.waiting(task_id)
        assert demo.project.ledger.reads == 1
        await demo.decide(approval, "approve")
        await demo.project.ended(task_id)
    assert demo.project.ledger.reads == 1
    assert "before: 0" in (await observations(demo, task_id))[0]


async def test_a_call_that_cannot_be_sent_fails_again_when_its_code_runs_again(demo: ApprovingProject) -> None:
    document = demo.project.ledger.document("http://ledger.test")
    parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    show = {"operationId": "show_entry", "parameters": [parameter], "responses": {"200": {"description": "it"}}}
    document["paths"]["/entries/{id}"] = {"get": show}
    async with demo.project.sessions.begin() as session:
        await apis.put(session, demo.project.id, "ledger", source="upload", document=document, digest="more")
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = """
try:
    apis.ledger.show_entry(id='..')
except Exception as error:
    print(type(error).__name__)
print(len(apis.ledger.list_entries()))
apis.ledger.add_entry(text='one')"""
    async with demo.project.runner(demo.engine(code)):
        await demo.decide(await demo.waiting(task_id), "approve")
        row = await demo.project.ended(task_id)
    assert (row.stop, demo.written()) == (Stop.COMPLETED, ["one"])
    assert "ValidationError\n0" in (await observations(demo, task_id))[0]


async def test_an_approval_does_not_hold_for_other_arguments(demo: ApprovingProject) -> None:
    """The id of the process differs in each session."""
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    code = "import os\napis.ledger.add_entry(text=str(os.getpid()))"
    async with demo.project.runner(demo.engine(code)):
        seen = []
        for _ in range(3):
            approval = await demo.waiting(task_id)
            seen.append((await demo.api.client.get(f"/v1/approvals/{approval['id']}")).json()["arguments"]["text"])
            await demo.decide(approval, "approve")
        row = await demo.project.ended(task_id)
    assert len(set(seen)) == 3
    assert demo.written() == []
    assert (row.stop, "with other values than those decided on" in (row.failure or "")) == (Stop.IN_DOUBT, True)


async def test_a_cancellation_while_the_runner_suspends_is_not_lost(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    demo.project.ledger.pause = 0.1  # the runner looks for cancellations more seldom than this
    async with demo.project.runner(demo.engine("apis.ledger.list_entries()\n" + WRITE)):
        await until(demo.has_read)
        await demo.api.client.post(f"/v1/tasks/{task_id}/cancel")
        row = await demo.project.ended(task_id)
    kinds = [kind for kind, _ in await demo.project.events(task_id)]
    assert (row.state, kinds.count("done"), "approval" in kinds) == (TaskState.CANCELLED, 1, False)
    [turn] = (await demo.api.client.get(f"/v1/tasks/{task_id}/trajectory")).json()["turns"]
    assert [call["api"] for call in turn["calls"]] == ["ledger.list_entries"]


async def test_two_people_who_decide_at_once_make_one_decision(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(WRITE)):
        approval = await demo.waiting(task_id)
    path = f"/v1/approvals/{approval['id']}"
    answers = await asyncio.gather(
        *(demo.api.client.post(path, json={"decision": each}) for each in ("approve", "refuse") * 4)
    )
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7
    winner = next(answer.json()["state"] for answer in answers if answer.status_code == 200)
    assert (await demo.api.client.get(path)).json()["state"] == winner
    audit = (await demo.api.client.get("/v1/audit")).json()["entries"]
    decided = [entry for entry in audit if entry["action"] == "approval decided"]
    assert [entry["detail"]["decision"] for entry in decided] == [winner]


async def test_a_decision_right_after_the_request_finds_the_runner_still_closing(demo: ApprovingProject) -> None:
    """The decision may be made before the runner that asked has dropped the task; the same runner claims it."""
    await demo.rules(WRITES)
    ids = [await demo.project.submit() for _ in range(4)]

    async def approve_everything() -> None:
        while True:
            listed = await demo.api.client.get("/v1/approvals", params={"state": "waiting"})
            for approval in listed.json()["approvals"]:
                await demo.decide(approval, "approve")

    approving = asyncio.create_task(approve_everything())
    async with demo.project.runner(demo.engine(WRITE)):
        rows = [await demo.project.ended(task_id) for task_id in ids]
    approving.cancel()
    assert {row.stop for row in rows} == {Stop.COMPLETED}
    assert len(demo.written()) == 4


async def test_the_runner_that_asked_executes_the_task_again_while_its_first_rollout_closes(
    demo: ApprovingProject,
) -> None:
    task_id = await demo.project.submit()
    attempts = []

    async def execute(row: models.Task, owner: str, stop_signal: StopSignal) -> None:
        attempts.append(row.attempt)
        if len(attempts) == 1:
            stop_signal.released = True
            async with demo.project.sessions.begin() as session:
                assert await task_queue.suspend(session, row.id, owner)
                await task_queue.wake(session, row.id)
            await asyncio.sleep(0.5)
            return
        async with demo.project.sessions.begin() as session:
            await task_queue.finish(session, row.id, owner, task_queue.TaskOutcome(state=TaskState.DONE))

    options = RunnerOptions(lease_seconds=60, poll_seconds=0.1)  # it is not the end of the lease that helps
    async with Runner(demo.project.sessions, execute, options) as runner:
        await demo.project.ended(task_id)
        await until(lambda: is_idle(runner))
    assert attempts == [1, 1]


async def is_idle(runner: Runner) -> bool:
    return runner.running == 0
