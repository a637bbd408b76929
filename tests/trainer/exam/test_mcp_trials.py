"""Trials of tasks that call MCP servers: on staging, on the live server, and where a command is missing."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from app.apis import store as apis
from app.apis.calls.network import open_client
from app.apis.mcp.connection import McpServers
from app.apis.mcp.listing import fetch_listing
from app.base.errors import InvalidError
from app.db.tables import ExamSource
from app.projects import store as projects
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from app.tasks.runner import Runner
from tests.support.examined import examined
from tests.support.ledger_project import OPTIONS, LedgerProject
from tests.support.notebook_server import Notebook
from tests.support.scripted_engine import ScriptedEngine, block

WRITE = block("apis.notes.write(text='hello')\napis.supervisor.complete_task()")
READ = block("apis.supervisor.complete_task(answer=apis.notes.read_notes()['result'])")
CHECK = "score = float(apis.notes.read_notes()['result'] == 'hello')"


@dataclass
class NotesProject:
    """A project whose only API is a notebook, and the notebook that trials may write in."""

    project: LedgerProject
    live: Notebook
    trial: Notebook
    live_url: str
    trial_url: str
    servers: McpServers

    async def change(self, settings: dict[str, Any]) -> None:
        async with self.project.sessions.begin() as session:
            await projects.change_settings(session, self.project.id, settings)

    async def put(self, server: str | None = None) -> None:
        listing = msgspec.json.decode(await fetch_listing(self.servers, self.live_url, None))
        async with self.project.sessions.begin() as session:
            await apis.put(
                session, self.project.id, "notes", source="upload", document=listing, digest="1", server=server
            )

    async def served(self, answer: str, check: str) -> None:
        """A task that was served, as the exam."""
        executor = replace(
            self.project.executor(ScriptedEngine(self.project.tokenizer, script=lambda *_: answer)),
            mcp=self.servers,
        )
        async with Runner(self.project.sessions, executor.execute, OPTIONS):
            task_id = await self.project.submit("read the notes", check_code=check)
            assert (await self.project.ended(task_id)).score == 1
        async with self.project.sessions.begin() as session:
            chosen = await exams.of_tasks(session, self.project.id, [task_id])
            await exams.put(session, self.project.id, "mine", ExamSource.LOG, chosen)


@pytest.fixture
async def notes(project: LedgerProject) -> AsyncIterator[NotesProject]:
    live, trial = Notebook(), Notebook()
    async with AsyncExitStack() as stack:
        live_url = await stack.enter_async_context(live.listening())
        trial_url = await stack.enter_async_context(trial.listening())
        client = await stack.enter_async_context(open_client(allow_private_hosts=True))
        servers = await stack.enter_async_context(McpServers(client))
        opened = NotesProject(project, live, trial, live_url, trial_url, servers)
        async with project.sessions.begin() as session:
            await apis.delete(session, project.id, "ledger")
        await opened.put()
        live.requests.clear()
        yield opened


async def test_on_staging_the_tools_of_another_mcp_server_are_called(notes: NotesProject) -> None:
    await notes.change({"staging": {"notes": {"server": notes.trial_url, "reset": "erase"}}})
    tasks = [NewExamTask(instruction=f"write hello, number {number}", check_code=CHECK) for number in range(2)]
    async with notes.project.sessions.begin() as session:
        await exams.put(session, notes.project.id, "mine", ExamSource.SUBMITTED, tasks)
    results = await examined(notes.project, "staging", lambda *_: WRITE)
    assert [(each.known, each.success) for each in results] == [(True, True)] * 2
    assert notes.trial.notes == ["hello"]
    assert notes.live.requests == []


async def test_an_mcp_server_that_is_down_makes_a_trial_unknown(notes: NotesProject) -> None:
    await notes.change({"staging": {"notes": {"server": "http://127.0.0.1:9/mcp", "stateless": True}}})
    task = NewExamTask(instruction="write hello", check_code=CHECK)
    async with notes.project.sessions.begin() as session:
        await exams.put(session, notes.project.id, "mine", ExamSource.SUBMITTED, [task])
    [result] = await examined(notes.project, "staging", lambda *_: WRITE)
    assert not result.known


async def test_on_the_live_mcp_server_tools_that_read_are_called(notes: NotesProject) -> None:
    notes.live.notes.append("buy tea")
    await notes.served(READ, "score = float(answer == 'buy tea')")
    [result] = await examined(notes.project, "live", lambda *_: READ)
    assert (result.known, result.success) == (True, True)
    [wrote] = await examined(notes.project, "live", lambda *_: WRITE)
    assert not wrote.known
    assert notes.live.notes == ["buy tea"]


async def test_a_command_that_this_machine_does_not_have_is_named(notes: NotesProject) -> None:
    await notes.served(READ, "score = 1.0")
    await notes.put("stdio:notebook")
    with pytest.raises(InvalidError, match="notes is the MCP server stdio:notebook, which cannot be called here"):
        await examined(notes.project, "live", lambda *_: READ)
