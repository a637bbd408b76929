"""A call in doubt is shown, a person says what became of it, and its task goes on."""

import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.base.values import Call, Json, ScoreSource, Stop
from app.db import results
from app.db.database import Sessions
from app.db.tables import RetentionKind
from app.tasks import calls, retention, turns
from app.tasks import store as tasks
from tests.support.approving import ApprovingProject
from tests.support.console_pages import post_form, read_page
from tests.support.http_server import served
from tests.support.ledger import Ledger
from tests.support.ledger_project import until
from tests.support.sage_command import SageCommand
from tests.support.scripted_engine import ScriptedEngine, block
from tests.tasks.test_resume import died_in_a_call
from tests.tasks.test_stalls import ended, open_project, runner, submit

TASKS = 8

CODE = "print('number', (apis.ledger.add_entry(text='a') or {}).get('id'))"
DONE = block("apis.supervisor.complete_task(answer='written')")
LOST = Call(seq=0, turn=0, api="ledger.add_entry", arguments={"text": "a"})


async def _in_doubt(demo: ApprovingProject) -> UUID:
    task_id: UUID = await died_in_a_call(demo.project, CODE, LOST)
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer, DONE)):
        assert (await demo.project.ended(task_id)).stop == Stop.IN_DOUBT
    return task_id


async def _ends(demo: ApprovingProject, task_id: UUID) -> dict[str, Any]:
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer, DONE)):
        await demo.project.ended(task_id)
    shown: dict[str, Any] = (await demo.api.client.get(f"/v1/tasks/{task_id}")).json()
    return shown


async def test_a_call_in_doubt_stands_in_the_trajectory_and_its_task_in_a_listing(demo: ApprovingProject) -> None:
    task_id = await _in_doubt(demo)
    shown = (await demo.api.client.get(f"/v1/tasks/{task_id}")).json()
    assert shown["in_doubt"] == {"operation": "ledger.add_entry", "arguments": {"text": "a"}, "turn": 0}
    assert "its runner died or stalled before its answer was recorded" in shown["failure"]
    [call] = (await demo.api.client.get(f"/v1/tasks/{task_id}/trajectory")).json()["turns"][0]["calls"]
    assert (call["api"], call["arguments"]) == ("ledger.add_entry", {"text": "a"})
    assert call["error"].startswith("InDoubt: ")
    listed = (await demo.api.client.get("/v1/tasks", params={"stop_reason": "in_doubt"})).json()["tasks"]
    assert [each["id"] for each in listed] == [str(task_id)]
    for stop, found in (("in_doubt", True), ("completed", False)):
        page = await read_page(demo.api, f"/console/tasks?project=demo&stop={stop}", "tasks")
        assert (str(task_id) in page) == found


@pytest.mark.parametrize(
    ("settlement", "written", "observation"),
    [
        ({"arrived": True, "result": {"id": 7}}, [], "number 7"),
        ({"arrived": True}, [], "number None"),
        ({"arrived": False}, ["a"], "number 1"),
    ],
)
async def test_a_task_goes_on_once_its_call_in_doubt_is_settled(
    demo: ApprovingProject, settlement: dict[str, Json], written: list[str], observation: str
) -> None:
    task_id = await _in_doubt(demo)
    client, path = demo.api.client, f"/v1/tasks/{task_id}"
    before = (await client.get("/v1/projects/demo/usage")).json()
    answer = await client.post(f"{path}/settle", json=settlement)
    assert (answer.status_code, answer.json()["state"], answer.json()["in_doubt"]) == (202, "running", None)
    assert (await client.post(f"{path}/settle", json=settlement)).status_code == 409
    shown = await _ends(demo, task_id)
    assert (shown["stop_reason"], shown["answer"], shown["failure"]) == ("completed", "written", None)
    assert (demo.written(), (await demo.observations(task_id))[0].strip()) == (written, observation)
    kinds = [kind for kind, _ in await demo.project.events(task_id)]
    assert (kinds.count("settled"), kinds.count("done"), kinds[-1]) == (1, 1, "done")
    after = (await client.get("/v1/projects/demo/usage")).json()
    assert after["today"]["done"] == before["today"]["done"] == 1
    assert after["today"]["calls"] == 1
    audit = (await client.get("/v1/audit", params={"action": "call settled"})).json()["entries"]
    assert [each["detail"]["arrived"] for each in audit] == [settlement["arrived"]]
    async with demo.project.sessions() as session:
        assert (await turns.of_task(session, task_id), await calls.of_task(session, task_id)) == ([], [])
        assert len((await results.of_task(session, task_id)).calls) == 1


async def test_a_call_in_doubt_is_settled_by_a_command(demo: ApprovingProject) -> None:
    task_id = str(await _in_doubt(demo))
    async with served(demo.api) as client:
        shell = SageCommand(demo.api, str(client.base_url))
        assert task_id in (await shell.run("tasks", "--stop-reason", "in_doubt")).out
        wrong = await shell.run("tasks", task_id, "--settle", "arrived", "--result", "{")
        assert (wrong.code, "--result is not JSON" in wrong.err) == (2, True)
        settled = await shell.run("tasks", task_id, "--settle", "arrived", "--result", '{"id": 7}')
        assert "running" in settled.out
        again = await shell.run("tasks", task_id, "--settle", "not-arrived")
    assert f"no call of task {task_id} is in doubt" in again.err
    await _ends(demo, UUID(task_id))
    assert (demo.written(), (await demo.observations(UUID(task_id)))[0]) == ([], "number 7")


async def test_a_call_in_doubt_is_settled_on_the_page_of_its_task(demo: ApprovingProject) -> None:
    task_id = await _in_doubt(demo)
    page = f"/console/tasks/{task_id}"
    shown = await read_page(demo.api, page, "tasks")
    assert "Did <code>ledger.add_entry</code> arrive?" in shown
    wrong = {"call": "arrived", "result": "{"}
    assert "it is not JSON" in await post_form(demo.api, f"{page}/settle", wrong, "tasks", status=400)
    await post_form(demo.api, f"{page}/settle", {"call": "lost"}, "tasks", status=303)
    await _ends(demo, task_id)
    assert demo.written() == ["a"]
    shown = await read_page(demo.api, page, "tasks")
    assert "did not arrive, as key ann found out" in shown
    assert "arrive?" not in shown


async def test_the_journal_of_a_task_in_doubt_is_deleted_with_its_trajectory(demo: ApprovingProject) -> None:
    task_id = await _in_doubt(demo)
    async with demo.project.sessions.begin() as session:
        assert await turns.of_task(session, task_id) != []
        row = await tasks.get(session, task_id)
        assert row.finished_at is not None
        window = retention.RetentionWindow(
            project_id=row.project_id, project="demo", kind=RetentionKind.TRAJECTORIES, until=row.finished_at
        )
        await retention.delete_some(session, window, 10)
        assert (await turns.of_task(session, task_id), await calls.of_task(session, task_id)) == ([], [])
    answer = await demo.api.client.post(f"/v1/tasks/{task_id}/settle", json={"arrived": False})
    assert answer.status_code == 409


async def test_what_is_in_doubt_after_kills_and_pauses_has_nearly_always_been_sent(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger = Ledger(pause=0.1)
    async with ledger.listening() as server, AsyncExitStack() as stack:
        project_id = await open_project(committed, ledger, server)
        ids = [await submit(committed, project_id, f"t{number}") for number in range(TASKS)]
        for event in (signal.SIGKILL, signal.SIGSTOP):
            process = await stack.enter_async_context(
                runner("runner_process", database_url, tmp_path, str(ledger.pause))
            )
            await _writes(ledger, 2)
            ledger.answers.clear()
            await _writes(ledger, 1)
            process.send_signal(event)
            ledger.answers.set()
            if event == signal.SIGSTOP:
                stack.callback(process.send_signal, signal.SIGCONT)
        await stack.enter_async_context(runner("runner_process", database_url, tmp_path))
        rows = [await ended(committed, task_id) for task_id in ids]
    written = Counter(" ".join(entry.text.split()[:2]) for entry in ledger.entries)
    assert set(written.values()) == {1}, "no write was made twice"
    lost = [call for row in rows if row.stop == Stop.IN_DOUBT for call in await _lost(committed, row.id)]
    assert len(lost) >= 2, "each event met a write that was being answered"
    untrue = [call for call in lost if " ".join(call.arguments["text"].split()[:2]) not in written]
    assert len(untrue) <= max(1, len(lost) // 10), f"{len(untrue)} of {len(lost)} were not sent"


async def _writes(ledger: Ledger, count: int) -> None:
    """Wait for so many more."""
    before = len(ledger.entries)
    await until(lambda: len(ledger.entries) >= before + count)


async def _lost(sessions: Sessions, task_id: UUID) -> list[Call]:
    async with sessions() as session:
        made = (await results.of_task(session, task_id)).calls
    return [call for call in made if (call.error or "").startswith("InDoubt: ")]


@pytest.mark.parametrize("scored", [False, True])
async def test_a_task_that_went_on_has_the_score_of_its_last_check_unless_a_person_gave_one(
    demo: ApprovingProject, scored: bool
) -> None:
    check = "score = 1.0 if answer == 'written' else 0.0"
    task_id = await died_in_a_call(demo.project, CODE, LOST, check_code=check)
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer, DONE)):
        first = await demo.project.ended(task_id)
    assert (first.stop, first.score, first.score_source) == (Stop.IN_DOUBT, 0.0, ScoreSource.CHECK)
    client = demo.api.client
    if scored:
        given = await client.post("/v1/feedback", json={"task_id": str(task_id), "score": 0.25})
        assert given.status_code == 201, given.text
    settled = (await client.post(f"/v1/tasks/{task_id}/settle", json={"arrived": True})).json()
    assert settled["score"] == (0.25 if scored else None)
    shown = await _ends(demo, task_id)
    expected = (0.25, "person") if scored else (1.0, "check")
    assert (shown["stop_reason"], (shown["score"], shown["score_source"])) == ("completed", expected)
