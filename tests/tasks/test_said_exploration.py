"""Whoever submits a task can keep it from exploring, and whoever looks at one sees whether it explored."""

import json
import re
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from app.db.tables import Exploration
from tests.support.approving import ApprovingProject
from tests.support.console_pages import post_form, read_page
from tests.support.http_server import served
from tests.support.sage_command import SageCommand
from tests.support.scripted_engine import ScriptedEngine
from tests.tasks.test_exploration import configure, greedy_runner, reading, writing
from tests.tasks.test_mcp_server import called, connected


@pytest.fixture
async def shell(demo: ApprovingProject) -> AsyncIterator[SageCommand]:
    async with served(demo.api) as client:
        yield SageCommand(demo.api, str(client.base_url))


async def test_every_way_to_submit_a_task_can_keep_it_from_exploring(
    demo: ApprovingProject, shell: SageCommand
) -> None:
    async def newest() -> Exploration | None:
        [task] = (await demo.api.client.get("/v1/tasks?limit=1")).json()["tasks"]
        return (await demo.project.row(UUID(task["id"]))).exploration

    found = {}
    for name, flag, argument, field in (
        ("kept", "--no-explore", False, {"explore": "false"}),
        ("not", "--explore", True, {}),
    ):
        ran = await shell.run("run", "look it up", "--no-follow", flag)
        assert ran.code == 0, ran.err
        found["run", name] = await newest()
        async with connected(demo, "tasks") as client:
            await called(client, "submit_task", instruction="look it up", explore=argument)
        found["MCP", name] = await newest()
        await post_form(demo.api, "/console/tasks", {"instruction": "look it up", **field}, "tasks")
        found["console", name] = await newest()
    ways = ("run", "MCP", "console")
    assert found == {(way, "kept"): Exploration.NO for way in ways} | {(way, "not"): None for way in ways}
    assert 'name="explore" value="false"' in await read_page(demo.api, "/console/tasks/new", "tasks")


async def test_a_task_says_whether_it_explored(demo: ApprovingProject, shell: SageCommand) -> None:
    project, found = demo.project, {}
    for name, script, percent, explore in (
        ("reads", reading, 100, True),
        ("stopped", writing, 100, True),
        ("no", reading, 100, False),
        ("null", reading, 0, True),
    ):
        await configure(project, explore_percent=percent)
        async with greedy_runner(project, ScriptedEngine(project.tokenizer, script=script)):
            task_id = (await project.ended(await project.submit(explore=explore))).id
        rest = (await demo.api.client.get(f"/v1/tasks/{task_id}")).json()["exploration"]
        assert json.dumps(rest).strip('"') == name
        shown = await shell.run("tasks", str(task_id), COLUMNS="200")
        [line] = re.findall("explored +(.*)", shown.out)
        page = await read_page(demo.api, f"/console/tasks/{task_id}", "tasks")
        [row] = re.findall("<dt>Explored</dt><dd>(.*?)</dd>", page)
        assert line.strip() in row
        found[name] = re.sub("<.*?>", "", row)
    assert found == {
        "reads": "yes, without the calls that are not open to exploration sampled at temperature 1",
        "stopped": "no more: it began again before a call that is not open to exploration "
        "sampled at temperature 0",
        "no": "no, as it was submitted sampled at temperature 0",
        "null": "no sampled at temperature 0",
    }
