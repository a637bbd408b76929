"""`sage export` against the real server: scored tasks become chats."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from app.agent.prompts import Compact, Full
from app.apis.catalog import Catalog, with_builtins
from app.apis.documents.protocols import parse_document
from app.apis.listing import listed_apps
from app.apis.presentation import Presentation, present
from app.base.values import Json, Offer, Stop, Task, Turn
from app.client.server import SageClient
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.runs.chat_lines import ChatRecord
from app.tasks import store as tasks
from tests.support.api_app import ApiApp, open_api_app
from tests.support.http_server import served
from tests.support.rows import trajectory_of, turn_of
from trainer.sft.chats import ExportFilter, export_chats, read_records


def document_of(*operations: str, parameters: int = 0) -> dict[str, Json]:
    """A document with these operations, each with so many parameters."""
    query: Json = [{"name": f"f{number}", "in": "query"} for number in range(parameters)]
    get = {"responses": {"200": {"description": "all"}}, "parameters": query}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mail", "version": "1", "description": "letters of the house"},
        "servers": [{"url": "http://127.0.0.1:9"}],
        "paths": {f"/{each}": {"get": {"operationId": each, **get}} for each in operations},
    }


DOCUMENT = document_of("list_mails")
COMPLETING = document_of("complete_task", "show_passwords")
LARGE = document_of(*(f"list_{number}" for number in range(10)), parameters=90)  # its signatures are shortened
HUGE = document_of(*(f"list_{number}" for number in range(100)), parameters=90)  # they are too many


class Shop:
    """A server with finished tasks."""

    def __init__(self, api: ApiApp, url: str) -> None:
        self.api = api
        self.url = url
        self.key = api.client.headers["Authorization"].removeprefix("Bearer ")

    async def task(
        self,
        *turns: Turn,
        score: float | None = 1.0,
        profile: str = "compact",
        offered: tuple[Offer, ...] = (),
        state: TaskState = TaskState.DONE,
        project: tables.Project | None = None,
        **fields: Any,
    ) -> None:
        """Add a finished task."""
        async with self.api.sessions.begin() as session:
            new = tasks.NewTask(**({"instruction": "tidy up"} | fields))
            row = await tasks.submit(session, (project or self.api.demo).id, new)
            row.state, row.score, row.stop = state, score, Stop.COMPLETED
            record = msgspec.structs.replace(trajectory_of(row, *turns, offered=offered), profile=profile)
            await results.save(session, row.project_id, record)

    async def export(self, out: Path, *options: str, key: str | None = None) -> tuple[int | None, str, str]:
        """Exit code, standard output, the last line of standard error."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "app.cli", "export", "--url", self.url, "--out", str(out), *options),
            env={**os.environ, "KEY": key or self.key},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        stdout, stderr = await process.communicate()
        return process.returncode, stdout.decode(), stderr.decode().strip().rpartition("\n")[2]


@pytest.fixture
async def shop(committed: Sessions, database_url: str) -> AsyncIterator[Shop]:
    async with open_api_app(committed, database_url) as api, served(api) as client:
        yield Shop(api, str(client.base_url))


def answers(record: ChatRecord) -> list[str]:
    return [message.content for message in record.messages if message.role == "assistant"]


async def test_scored_tasks_become_chats_oldest_first(shop: Shop, tmp_path: Path) -> None:
    skill = Offer(
        skill_id=uuid4(), name="greet", version=1, signature="greet() -> int", source="", instruction="older"
    )
    look = msgspec.structs.replace(turn_of("look"), observation="three")
    await shop.task(look, turn_of("end"), score=0.5, instruction="count", scenario="counting", offered=(skill,))
    await shop.task(turn_of("won"))
    await shop.task(turn_of("unscored"), score=None)
    await shop.task(turn_of("cancelled"), state=TaskState.CANCELLED)
    await shop.task()
    code, stdout, stderr = await shop.export(tmp_path / "deep" / "out.jsonl")
    assert code == 0, stderr
    assert stdout == f"{tmp_path}/deep/out.jsonl: 2 tasks\nleft out 1: it ended before its first turn\n"
    first, second = read_records(tmp_path / "deep" / "out.jsonl")
    task = Task(uuid4(), "count")
    assert first.opening == tuple(Compact().opening(task, [skill], []))
    assert [message.content for message in first.messages[1:]] == ["look", "three", "end"]
    assert (first.about["score"], first.about["scenario"], first.about["project"]) == (0.5, "counting", "demo")
    assert first.about["offered"] == ["greet"]
    assert answers(second) == ["won"]


async def test_chats_with_secrets_are_left_out_and_counted(shop: Shop, tmp_path: Path) -> None:
    await shop.task(turn_of("won"))
    async with shop.api.sessions.begin() as session:
        row = await tasks.submit(session, shop.api.demo.id, tasks.NewTask(instruction="log in"))
        row.state, row.score, row.stop = TaskState.DONE, 1.0, Stop.COMPLETED
        record = msgspec.structs.replace(trajectory_of(row, turn_of("***")), profile="compact", masked=True)
        await results.save(session, row.project_id, record)
    code, stdout, stderr = await shop.export(tmp_path / "out.jsonl")
    assert code == 0, stderr
    assert stdout == f"{tmp_path}/out.jsonl: 1 tasks\nleft out 1: the policy read or wrote a secret\n"


async def test_the_full_profile_opens_with_the_apis_of_the_project(shop: Shop, tmp_path: Path) -> None:
    documents = {"huge": HUGE, "large": LARGE, "mail": DOCUMENT, "supervisor": COMPLETING}
    readable = Presentation(naming="readable")
    apps = {name: present(parse_document(name, document), readable) for name, document in documents.items()}
    for name, document in documents.items():
        added = await shop.api.client.post("/v1/apis", json={"name": name, "document": document})
        assert added.is_success, added.text
    await shop.task(turn_of("won"), profile="full", instruction="count")
    await shop.task(turn_of("odd"), profile="gone")
    _, stdout, _ = await shop.export(tmp_path / "out.jsonl")
    assert stdout.endswith("left out 1: its prompt profile is not known here\n")
    (record,) = read_records(tmp_path / "out.jsonl")
    opening = Full().opening(Task(uuid4(), "count"), (), listed_apps(with_builtins(Catalog(apps))))
    assert record.opening == tuple(opening)
    assert "apis.mail.list_mails()" in (shown := record.messages[1].content)
    assert "apis.large.list_0(" in shown
    assert "show_signatures(app_name='huge')" in shown


async def test_only_the_tasks_that_were_asked_for_are_written(shop: Shop, tmp_path: Path) -> None:
    other = await shop.api.project("other")
    for score in (0.2, 0.8, 0.9):
        await shop.task(turn_of(f"scored {score}"), score=score, project=other)
    await shop.task(turn_of("elsewhere"))

    async def written(*options: str) -> list[str]:
        await shop.export(tmp_path / "out.jsonl", *options)
        return [answer for record in read_records(tmp_path / "out.jsonl") for answer in answers(record)]

    assert await written("--project", "other", "--min-score", "0.5") == ["scored 0.8", "scored 0.9"]
    assert await written("--project", "other", "--limit", "1") == ["scored 0.9"]
    assert await written("--project", "demo", "--since", "2020-01-01") == ["elsewhere"]
    _, stdout, _ = await shop.export(tmp_path / "none.jsonl", "--until", "2020-01-01")
    assert stdout == f"{tmp_path}/none.jsonl: 0 tasks\n"


async def test_more_tasks_than_a_batch_holds_are_all_written_once(shop: Shop) -> None:
    async with shop.api.sessions.begin() as session:
        rows = [
            await tasks.submit(session, shop.api.demo.id, tasks.NewTask(instruction="tidy")) for _ in range(203)
        ]
        for number, row in enumerate(rows):
            row.state, row.score, row.stop = TaskState.DONE, 1.0, Stop.COMPLETED
            record = msgspec.structs.replace(trajectory_of(row, turn_of(f"{number}")), profile="compact")
            await results.save(session, row.project_id, record)
    reports: list[None] = []
    with SageClient(shop.url, shop.key) as server:
        found = await asyncio.to_thread(export_chats, server, ExportFilter(), lambda: reports.append(None))
        some = await asyncio.to_thread(export_chats, server, ExportFilter(limit=201), lambda: None)
    assert [answers(record) for record in found.records] == [[f"{number}"] for number in range(203)]
    assert len(reports) == 203
    assert [answers(record) for record in some.records] == [[f"{number}"] for number in range(2, 203)]


async def test_the_export_over_rest_shows_tasks_as_their_own_routes_do(shop: Shop) -> None:
    await shop.task(turn_of("won"), scenario="counting")
    await shop.task(turn_of("lost"), score=0.0)
    client = shop.api.client
    answer = await client.get("/v1/tasks/export", params={"scenario": "counting", "tokens": True})
    assert answer.headers["content-type"].startswith("text/x-ndjson")
    [line] = answer.text.splitlines()
    exported = msgspec.json.decode(line)
    [listed] = (await client.get("/v1/tasks", params={"scenario": "counting"})).json()["tasks"]
    shown = await client.get(f"/v1/tasks/{listed['id']}/trajectory", params={"prompt": False})
    assert exported == {"task": listed, "trajectory": shown.json()}
    assert exported["trajectory"]["turns"][0]["sampled_ids"] == [3]
    bare = (await client.get("/v1/tasks/export?limit=1")).text
    assert "sampled_ids" not in bare
    other = await client.get("/v1/tasks/export", headers=await shop.api.key("skills"))
    assert other.status_code == 403


async def test_a_refused_key_is_reported_and_nothing_is_written(shop: Shop, tmp_path: Path) -> None:
    code, _, stderr = await shop.export(tmp_path / "out.jsonl", key="sage_bad")
    assert code == 6
    assert stderr.startswith("Error: this key is unknown or was revoked")
    assert os.listdir(tmp_path) == []
