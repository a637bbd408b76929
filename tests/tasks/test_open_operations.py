"""Single operations are opened to tasks that explore, or closed to them."""

import asyncio
from typing import Any

from app.base.values import NOT_OPEN
from app.db.tables import Exploration, TaskState
from tests.support.api_app import problem
from tests.support.approving import ApprovingProject
from tests.support.console_pages import post_form, read_page
from tests.support.http_server import served
from tests.support.ledger_policies import DONE
from tests.support.ledger_project import until
from tests.support.sage_command import SageCommand
from tests.support.scripted_engine import Answer, ScriptedEngine, block
from tests.tasks.test_exploration import READ, WRITE, configure, greedy_runner, writing

_CLOSED = "apis.ledger.add_entry(text='first')\napis.ledger.list_entries()"


class Stalled(ScriptedEngine):
    """Never comes back with the answer after the first `most`."""

    most = 2

    async def _next(self, prompt: str) -> Answer:
        if len(self.samplings) > self.most:
            await asyncio.Event().wait()
        return await super()._next(prompt)


async def put(demo: ApprovingProject, operation: str, **fields: Any) -> None:
    answer = await demo.api.client.patch(f"/v1/apis/ledger/operations/{operation}", json=fields)
    assert answer.status_code == 200, answer.text


def engine_of(demo: ApprovingProject, *turns: str) -> ScriptedEngine:
    def script(prompt: str, turn: int) -> Answer:  # noqa: ARG001 - the signature of scripts
        return block([*turns, DONE][min(turn, len(turns))])

    return ScriptedEngine(demo.project.tokenizer, script=script)


async def test_what_an_exploring_task_may_change_is_decided_by_operation_and_by_project(
    demo: ApprovingProject,
) -> None:
    project, found = demo.project, {}
    rows = [(own, whole) for own in (None, True, False) for whole in (False, True)]
    for own, whole in rows:
        await put(demo, "add_entry", explore=own)
        await configure(project, explore_percent=100, explore_writes=whole)
        project.ledger.entries.clear()
        engine = ScriptedEngine(project.tokenizer, script=writing)
        async with greedy_runner(project, engine):
            row = await project.ended(await project.submit())
        assert (row.state, len(project.ledger.entries)) == (TaskState.DONE, 1)
        found[own, whole] = (row.exploration, {each.temperature for each in engine.samplings})
    reads, writes, stopped = (
        (Exploration.READS, {1.0}),
        (Exploration.WRITES, {1.0}),
        (Exploration.STOPPED, {1.0, 0.0}),
    )
    assert found == {
        (None, False): stopped,
        (None, True): writes,
        (True, False): reads,
        (True, True): writes,
        (False, False): stopped,
        (False, True): stopped,
    }


async def test_a_task_that_has_changed_something_is_refused_a_closed_call_and_goes_on(
    demo: ApprovingProject,
) -> None:
    """To begin again would make its change twice."""
    project = demo.project
    await put(demo, "add_entry", explore=True)
    await put(demo, "list_entries", safe=False)
    await configure(project, explore_percent=100)
    engine = engine_of(demo, _CLOSED)
    async with greedy_runner(project, engine):
        row = await project.ended(await project.submit())
    assert (row.state, row.exploration, row.turns) == (TaskState.DONE, Exploration.READS, 2)
    assert ([entry.text for entry in project.ledger.entries], project.ledger.reads) == (["first"], 0)
    [read, _] = await demo.observations(row.id)
    assert "ledger.list_entries was not called" in read
    assert "do not try it again" in read
    trajectory = (await demo.api.client.get(f"/v1/tasks/{row.id}/trajectory")).json()
    [made, refused] = [call for turn in trajectory["turns"] for call in turn["calls"]]
    assert (made["error"], NOT_OPEN in refused["error"]) == (None, True)


async def test_a_call_that_the_api_refused_has_changed_nothing(demo: ApprovingProject) -> None:
    """So the task begins again at the next one that is closed, and nobody loses it."""
    project = demo.project
    await put(demo, "add_entry", explore=True)
    await put(demo, "list_entries", safe=False)
    await configure(project, explore_percent=100)
    refused = "try:\n    apis.ledger.add_entry(text='x', amount='many')\nexcept Exception: pass"
    engine = engine_of(demo, f"{refused}\napis.ledger.list_entries()")
    async with greedy_runner(project, engine):
        row = await project.ended(await project.submit())
    assert (row.state, row.exploration, project.ledger.reads) == (TaskState.DONE, Exploration.STOPPED, 1)


async def test_a_closed_call_is_refused_again_by_the_runner_that_resumes_the_task(demo: ApprovingProject) -> None:
    project = demo.project
    await put(demo, "add_entry", explore=True)
    await put(demo, "list_entries", safe=False)
    await configure(project, explore_percent=100)
    turns = (
        "apis.ledger.add_entry(text='first')",
        "apis.ledger.list_entries()",
        "apis.ledger.add_entry(text='2')",
    )
    first = Stalled(project.tokenizer, *map(block, turns))
    async with greedy_runner(project, first):
        task_id = await project.submit()
        await until(lambda: len(first.samplings) > first.most)
    second = engine_of(demo, *turns)
    async with greedy_runner(project, second):
        row = await project.ended(task_id)
    assert (row.state, row.exploration, project.ledger.reads) == (TaskState.DONE, Exploration.READS, 0)
    assert [entry.text for entry in project.ledger.entries] == ["first", "2"]


async def test_an_approval_holds_for_an_operation_that_is_open(demo: ApprovingProject) -> None:
    project = demo.project
    await put(demo, "add_entry", explore=True, approval="always")
    await configure(project, explore_percent=100)
    async with greedy_runner(project, engine_of(demo, READ, WRITE)):
        task_id = await project.submit()
        await demo.decide(await demo.waiting(task_id), "approve")
        row = await project.ended(task_id)
    assert (row.exploration, len(project.ledger.entries)) == (Exploration.READS, 1)


async def test_an_operation_is_opened_by_rest_the_command_and_the_console(demo: ApprovingProject) -> None:
    async def state() -> Any:
        answer = await demo.api.client.get("/v1/apis/ledger/operations")
        return next(each["explore"] for each in answer.json() if each["name"] == "add_entry")

    address = "/console/apis/ledger/operations/add_entry"
    assert await state() is None
    await put(demo, "add_entry", explore=True)
    assert await state() is True
    assert '<option value="true" selected>open' in await read_page(demo.api, address, "admin")
    await post_form(demo.api, address, {"explore": "false"}, "admin")
    assert await state() is False
    async with served(demo.api) as client:
        shell = SageCommand(demo.api, str(client.base_url))
        ran = await shell.run("apis operation", "ledger", "add_entry", "--explore")
        assert (ran.code, await state()) == (0, True), ran.err
        await shell.run("apis operation", "ledger", "add_entry", "--reset")
        assert await state() is None
        wrong = await shell.run("apis operation", "ledger", "add_entri", "--explore")
    assert (wrong.code, "add_entry" in wrong.err) == (6, True)
    unknown = await demo.api.client.patch("/v1/apis/ledger/operations/add_entri", json={"explore": True})
    assert (unknown.status_code, "add_entry" in str(problem(unknown))) == (404, True)
