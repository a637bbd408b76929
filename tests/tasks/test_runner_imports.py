"""A runner imports nothing while it executes a task: its event loop is watched, and all its tasks wait."""

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec

from app.apis import store as apis
from app.apis.calls.network import open_client
from app.apis.mcp.connection import McpServers
from app.apis.mcp.listing import fetch_listing
from app.db.database import Sessions
from app.db.tables import Project
from app.projects import store as projects
from app.tasks import store as tasks
from tests.processes.test_asgi import environment
from tests.support.every_row import every_row
from tests.support.ledger import Ledger
from tests.support.ledger_project import put_ledger
from tests.support.notebook_server import Notebook
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.support.scripted_server import scripted_server

RUNNER = """
import sys
from app.processes import runner as standalone_runner
from app.tasks.execution import TaskExecutor

execute = TaskExecutor.execute

async def watched(self, row, owner, stop_signal):
    before = set(sys.modules)
    await execute(self, row, owner, stop_signal)
    new = sorted(name for name in sys.modules.keys() - before if not name.startswith("encodings."))
    print("executed", row.instruction, *new, flush=True)

TaskExecutor.execute = watched
standalone_runner.WATCHDOG_SECONDS = 100.0  # nothing replaces a runner that its watchdog ends
standalone_runner.main()
"""
"""Reports what each task imported, but for codecs: an answer may name any of a hundred, each a millisecond."""
TASKS = {
    "mcp": "print(apis.notes.write(text='hello'), apis.older_notes.read_notes())",
    "failing-mcp": "print(apis.notes.tear(page=3))",
    "absent-mcp": "print(apis.absent_notes.read_notes())",
    "http": "print(apis.ledger.add_entry(text='hello'), apis.ledger.list_entries())",
    "docs": "print(apis.api_docs.show_app_descriptions())",
    "skill": "def write(text: str) -> None:\n    apis.ledger.add_entry(text=text)\nwrite('twice')\nwrite('twice')",
    "error": "import zoneinfo, decimal\nprint(1 / 0)",
    "endless": "while True: pass",
}
"""Code by the instruction of a task; it completes the task afterwards."""


def answer(prompt: str, turn: int) -> str:
    code = next(code for name, code in TASKS.items() if f"do {name} now" in prompt)
    return block(code if turn == 0 else "apis.supervisor.complete_task(answer=1)")


async def put_notes(sessions: Sessions, project: Project, name: str, url: str, listed: str) -> None:
    async with open_client(allow_private_hosts=True) as client, McpServers(client) as servers:
        document = msgspec.json.decode(await fetch_listing(servers, listed, None)) | {"url": url}
    async with sessions.begin() as session:
        await apis.put(session, project.id, name, source="upload", document=document, digest=name)


async def test_a_task_imports_nothing_into_its_runner(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger, notes, older = Ledger(), Notebook(), Notebook(older=True)
    engine = ScriptedEngine(byte_tokenizer(tmp_path), script=answer)
    async with (
        ledger.listening() as services,
        notes.listening() as url,
        older.listening() as older_url,
        scripted_server(engine) as model,
    ):
        async with committed.begin() as session:
            project = await projects.create(session, "demo")
            await put_ledger(session, project.id, ledger, services)
        await put_notes(committed, project, "notes", url, url)
        await put_notes(committed, project, "older_notes", older_url, older_url)
        await put_notes(committed, project, "absent_notes", "http://127.0.0.1:9/mcp", url)
        async with committed.begin() as session:
            new = [tasks.NewTask(instruction=f"do {name} now", check_code="score = 1.0") for name in TASKS]
            await tasks.submit_all(session, [(project.id, each) for each in new])
        env = environment(tmp_path, database_url) | {
            "ENGINE_URLS": model,
            "SAGE_PROMPT_PROFILE": "compact",
            "SAGE_MAX_TASKS_IN_FLIGHT": "1",
            "SAGE_ALLOW_PRIVATE_HOSTS": "1",
            "SAGE_SANDBOX_CPU_SECONDS": "1",
        }
        imported = await _executed(env, len(TASKS))
    assert (notes.notes, older.sessions) == (["hello"], 2), "the servers were called"
    with every_row() as row:
        for name in TASKS:
            with row(name):
                assert imported[name] == [], " ".join(imported[name])


async def _executed(env: dict[str, str], count: int) -> dict[str, list[str]]:
    """What each task imported, by its name, of a runner that has executed so many."""
    # A new interpreter: one of `python -m` would be a fork that has imported everything.
    runner = await asyncio.create_subprocess_exec(sys.executable, "-c", RUNNER, env=env, stdout=subprocess.PIPE)
    found = dict[str, list[str]]()
    try:
        assert runner.stdout is not None
        while len(found) < count:
            line = (await runner.stdout.readline()).decode()
            assert line, "the runner ended: its output says why"
            if line.startswith("executed do "):
                _, _, name, _, *modules = line.split()
                found[name] = modules
    finally:
        runner.kill()
        await runner.wait()
    return found
