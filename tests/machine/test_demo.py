"""The demo project has the APIs that the demo services publish."""

import json
from collections.abc import AsyncIterator

import pytest

from app.apis import store as apis
from app.apis.documents.protocols import parse_document
from app.base.errors import ApiDocumentError
from app.db.database import Sessions
from app.machine.up import PROJECT, first_task, register_demo
from app.projects import store as projects
from app.releases import manifest, tools
from app.releases import store as releases
from app.tasks import queue
from tests.support.listening_app import listening_app
from tests.support.rows import LEASE, task_row
from trainer.worlds.office.apps import APP_NAMES
from trainer.worlds.office.services import create_demo_apis


@pytest.fixture
async def services() -> AsyncIterator[str]:
    app = create_demo_apis("token")
    async with listening_app(app, lifespan="off") as url:
        yield url


async def test_registering_twice_leaves_each_demo_api_once(
    committed: Sessions, database_url: str, services: str
) -> None:
    async with committed.begin() as session:
        project = await projects.create(session, PROJECT)
    for _ in range(2):
        await register_demo(database_url, services)
    async with committed() as session:
        rows = [await apis.get(session, project.id, name) for name in APP_NAMES]
        assert len(await apis.of_project(session, project.id)) == len(rows)
    assert sorted(row.name for row in rows) == sorted(APP_NAMES)
    for row in rows:
        assert row.source == f"{services}/sites/0/{row.name}/openapi.json"
        assert parse_document(row.name, row.document, source=row.source).digest == row.digest


async def test_registering_again_does_not_undo_a_roll_back(
    committed: Sessions, database_url: str, services: str
) -> None:
    async with committed.begin() as session:
        project = await projects.create(session, PROJECT)
        serving = await manifest.lock_active(session, project.id)
        await apis.put(session, project.id, "mail", source="upload", document={"old": True}, digest="old")
        await manifest.update_tools(session, serving, ["mail"], "key me")
        await task_row(session, project.id)
        assert await queue.claim(session, "me", LEASE) is not None
    await register_demo(database_url, services)
    async with committed.begin() as session:
        assert (await releases.active(session, project.id)).number == 2
        await releases.activate(session, serving.id)
    await register_demo(database_url, services)
    async with committed() as session:
        active = await releases.active(session, project.id)
        [mail] = await tools.api_documents(session, active)
        document = json.loads(await apis.document(session, mail.id, mail.digest))
    assert (active.id, mail.name, document) == (serving.id, "mail", {"old": True})


async def test_services_that_are_down_are_named(database_url: str) -> None:
    with pytest.raises(
        ApiDocumentError, match=r"http://127\.0\.0\.1:9/demo cannot be read .*: set SAGE_DEMO_PORT"
    ):
        await register_demo(database_url, "http://127.0.0.1:9")


def test_every_shell_line_carries_the_key_and_the_first_one_names_the_project() -> None:
    task = {"instruction": "count my mails", "scenario": "count"}
    lines = [line for line in first_task("http://h:1", task) if "curl" in line]
    assert len(lines) == 3
    assert json.loads(lines[0].split("'")[1]) == {**task, "project": "demo"}
    for line in lines:
        assert '-H "Authorization: Bearer $KEY"' in line
