"""Approvals against what happens at the same time: cancellations, other decisions, and the runner that asked."""

import asyncio

import msgspec
import pytest

from app.agent.rollout import StopSignal
from app.base.values import Stop
from app.db import lease, tables
from app.db.tables import TaskState
from app.tasks import queue, runner
from app.tasks.runner import Runner, RunnerOptions
from tests.support.approving import WRITE, WRITES, ApprovingProject
from tests.support.ledger_project import OPTIONS, until


async def test_a_cancellation_while_the_runner_suspends_is_not_lost(
    demo: ApprovingProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_CANCEL_SECONDS", 60)
    await demo.rules(WRITES)
    task_id = await demo.project.submit()
    demo.project.ledger.answers.clear()
    engine = demo.engine("apis.ledger.list_entries()\n" + WRITE)
    seldom = msgspec.structs.replace(OPTIONS, lease_seconds=60)
    async with demo.project.runner(engine, seldom):
        await until(demo.has_read)
        await demo.api.client.post(f"/v1/tasks/{task_id}/cancel")
        demo.project.ledger.answers.set()
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


async def test_a_decision_right_after_the_request_finds_the_runner_still_closing(
    demo: ApprovingProject,
) -> None:
    """The decision may be made before the runner that asked has dropped the task; the same runner claims it."""
    await demo.rules(WRITES)
    ids = [await demo.project.submit() for _ in range(4)]
    ended = asyncio.Event()

    async def approve_everything() -> None:
        while not ended.is_set():
            listed = await demo.api.client.get("/v1/approvals", params={"state": "waiting"})
            for approval in listed.json()["approvals"]:
                await demo.decide(approval, "approve")

    approving = asyncio.create_task(approve_everything())
    async with demo.project.runner(demo.engine(WRITE)):
        rows = [await demo.project.ended(task_id) for task_id in ids]
    ended.set()
    await approving  # not cancelled: an interrupted request would still hold a connection of the database
    assert {row.stop for row in rows} == {Stop.COMPLETED}
    assert len(demo.written()) == 4


async def test_the_runner_that_asked_executes_the_task_again_once_its_first_rollout_has_closed(
    demo: ApprovingProject,
) -> None:
    task_id = await demo.project.submit()
    attempts = []

    async def execute(row: tables.Task, owner: str, stop_signal: StopSignal) -> None:
        attempts.append(row.attempt)
        if len(attempts) == 1:
            stop_signal.released = True
            async with demo.project.sessions.begin() as session:
                assert await lease.suspend(session, row.id, owner)
                await lease.wake(session, row.id)
            await asyncio.sleep(0.5)
            attempts.append(0)
            return
        async with demo.project.sessions.begin() as session:
            await queue.finish(session, row.id, owner, queue.TaskOutcome(state=TaskState.DONE))

    options = RunnerOptions(lease_seconds=60, poll_seconds=0.1)  # it is not the end of the lease that helps
    async with Runner(demo.project.sessions, execute, options) as runner:
        await demo.project.ended(task_id)
        await until(lambda: is_idle(runner))
    assert attempts == [1, 0, 1]


async def is_idle(runner: Runner) -> bool:
    return runner.running == 0
