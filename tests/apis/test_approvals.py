"""Calls that wait for a person: the task is suspended, and continues with the decision."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from app.apis.approvals.store import ApprovalExpiry
from app.base.values import Stop
from app.db import tables
from app.db.tables import TaskState
from tests.support.api_app import problem
from tests.support.approving import COMPLETE, WRITE, WRITES, ApprovingProject
from tests.support.scripted_engine import ScriptedEngine, block

CAUGHT = """
try:
    apis.ledger.add_entry(text='one')
except PermissionError as error:
    print('refused:', error)
"""


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
    assert "{'id': 1}" in (await demo.observations(task_id))[0]


async def test_the_agent_reads_why_a_call_was_refused_and_goes_on(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(CAUGHT, "print(len(apis.ledger.list_entries()))")):
        await demo.decide(await demo.waiting(task_id), "refuse", "not on Sundays")
        assert (await demo.project.ended(task_id)).stop == Stop.COMPLETED
    first, second, _ = await demo.observations(task_id)
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
        await demo.project.ended(task_id)
    [approval] = (await demo.api.client.get("/v1/approvals")).json()["approvals"]
    assert approval["state"] == "expired"
    assert (
        "refused: ledger.add_entry was not called: nobody approved it in time"
        in (await demo.observations(task_id))[0]
    )
    late = await demo.api.client.post(f"/v1/approvals/{approval['id']}", json={"decision": "approve"})
    assert late.status_code == 409
    assert "already expired" in str(problem(late)["detail"])
    assert demo.written() == []


async def test_a_decision_after_the_time_out_is_refused_before_anything_noticed_it(
    demo: ApprovingProject,
) -> None:
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(WRITE)):
        approval = await demo.waiting(task_id)
    async with demo.project.sessions.begin() as session:
        await session.merge(tables.Approval(id=UUID(approval["id"]), expires_at=datetime.now(UTC)))
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
    assert "2" in (await demo.observations(second))[0]
    assert "refused: ledger.add_entry was refused by a person: enough" in (await demo.observations(third))[0]
    used = (await demo.api.client.get(f"/v1/tasks/{second}")).json()["skills"]["used"]
    assert [skill["name"] for skill in used] == ["write_entry"]
