"""The loop over HTTP: a task is solved by code against a live API, and leaves a skill for the next one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.apis.documents.reader import DocumentReader
from app.base.settings import Settings
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.processes.api import create_app
from app.processes.dependencies import Dependencies
from app.projects import keys
from app.releases.adapter_store import AdapterDirectory
from app.releases.promotion import Promoter
from app.runs.broker import worker_notifier
from app.runs.datasets import DatasetStore
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.library import Library
from app.skills.search import query_ngram
from app.tasks.execution import TaskExecutor
from app.tasks.runner import Runner, RunnerOptions
from tests.support.api_app import BASE_ALONE, BUSY, asgi_client, running
from tests.support.ledger import Ledger
from tests.support.recording_swapper import RecordingSwapper
from tests.support.scripted_engine import Answer, ScriptedEngine, block, byte_tokenizer

SKILL = """
def write_entry(text: str) -> int:
    return apis.ledger.add_entry(text=text)["id"]
print(write_entry("{word}"))"""


def writing(prompt: str, turn: int) -> Answer:
    """Looks up the API and writes a skill; if it is offered a skill, it needs no look-up."""
    word = prompt.partition("write ")[2].split()[0]
    if "skills:" in prompt:
        return block(f"write_entry('{word}')\napis.supervisor.complete_task()")
    steps = ('print(apis.api_docs.show_signatures("ledger"))', SKILL, "apis.supervisor.complete_task()")
    return block(steps[turn].replace("{word}", word))


@pytest.fixture
async def client(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    tokenizer = byte_tokenizer(tmp_path)
    async with committed.begin() as session:
        _, secret = await keys.create(session, "test", ["admin"])

    @asynccontextmanager
    async def open_dependencies() -> AsyncIterator[Dependencies]:
        engine = ScriptedEngine(tokenizer, script=writing)
        library = Library(committed, retrieval=query_ngram)
        async with (
            ForkedSandbox(bwrap=False) as sandbox,
            Ledger().client() as live,
            NotificationListener(database_url) as listener,
            DocumentReader() as document_reader,
        ):
            agent = Agent(engine, tokenizer, Compact(), sandbox, RolloutLimits())
            executor = TaskExecutor(committed, agent, library, live, Settings(skills_withheld=0))
            async with Runner(committed, executor.execute, RunnerOptions(concurrency=2)):
                yield Dependencies(
                    sessions=committed,
                    listener=listener,
                    library=library,
                    promoter=Promoter(committed, RecordingSwapper(), "prompt"),
                    first_release=BASE_ALONE,
                    adapters=AdapterDirectory(tmp_path),
                    notify_workers=worker_notifier(Settings(data_dir=tmp_path)),
                    http_client=live,
                    document_reader=document_reader,
                    readiness_checks={},
                    occupancy=lambda: BUSY,
                    datasets=DatasetStore(Path("data/datasets")),
                )

    app = create_app(open_dependencies)
    async with running(app), asgi_client(app, {"Authorization": f"Bearer {secret}"}) as opened:
        yield opened


async def test_the_second_task_of_a_scenario_is_solved_with_the_skill_of_the_first(
    client: httpx.AsyncClient,
) -> None:
    await client.post("/v1/projects", json={"name": "demo"})
    document = Ledger().document("http://ledger.test")
    assert (await client.post("/v1/apis", json={"name": "ledger", "document": document})).status_code == 201

    solved = []
    for word in ("hello", "again"):
        body = {
            "instruction": f"write {word} into the ledger",
            "check": "score = float(len(apis.ledger.list_entries()) > 0)",
        }
        made = (await client.post("/v1/tasks", json=body)).json()
        events = await client.get(made["links"]["events"], timeout=300)  # ends with the task
        assert "event: done" in events.text
        solved.append((await client.get(made["links"]["self"])).json())

    first, second = solved
    assert [(each["state"], each["stop_reason"], each["score"]) for each in solved] == [
        ("done", "completed", 1.0)
    ] * 2
    written = first["skills"]["written"]
    assert [(each["name"], each["version"], each["task_id"]) for each in written] == [
        ("write_entry", 1, first["id"])
    ]
    assert second["skills"].pop("selection")["choices"][0]["offered"] is True
    assert second["skills"] == {"offered": written, "withheld": [], "used": written, "written": []}
    assert second["turns"] < first["turns"]
    assert second["generated_tokens"] < first["generated_tokens"]
    assert second["release"] == {"number": 1, "model": "base"}

    uses = (await client.get(f"/v1/skills/{written[0]['id']}/uses")).json()
    assert [(each["made_by"], each["task_id"], each["returned"]) for each in uses] == [
        (first["id"], second["id"], 1)
    ]
    found = (await client.get("/v1/skills/search", params={"q": "write more into the ledger"})).json()
    assert [each["name"] for each in found] == ["write_entry"]
    turns = (await client.get(second["links"]["trajectory"])).json()["turns"]
    assert sum(len(turn["sampled_ids"]) for turn in turns) == second["generated_tokens"]
