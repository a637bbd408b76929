"""What the console shows to a key that lacks a scope is what REST shows to it: less than to an administrator."""

from collections.abc import AsyncIterator, Mapping
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.credentials import store as credentials
from app.db import tables
from app.db.database import Sessions
from app.releases import manifest
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import NewEvaluation
from app.runs import datasets
from app.skills import store as skills
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app
from tests.support.console_pages import read_page
from tests.support.rows import LEASE, new_skill, task_row

_KEY = {"type": "apiKey", "in": "header", "name": "X-Key"}
_DOCUMENT = {
    "openapi": "3.1.0",
    "servers": [{"url": "http://127.0.0.1:9"}],
    "security": [{"key": []}],
    "components": {"securitySchemes": {"key": _KEY}},
    "paths": {"/cups": {"get": {"operationId": "list_cups"}}},
}
_COMPARED = "/console/releases/compare?from=1&to=2"
_KEPT: Mapping[tuple[str, str], str] = {
    ("/console/apis", "refused bea"): "admin",
    ("/console/apis/cups", "refused bea"): "admin",
    ("/console/apis/cups", "<td>bea</td>"): "admin",
    (_COMPARED, "Exams that both took"): "admin",
    ("/console/usage", "12.3 MB"): "admin",
    (_COMPARED, 'class="source-change'): "skills",
}
"""What a page has only for a key with the scope, as the REST route that shows it."""


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        answer = await opened.client.post("/v1/apis", json={"name": "cups", "document": _DOCUMENT})
        assert answer.status_code == 201, answer.text
        async with committed.begin() as session:
            await _give_credentials(session, opened.demo.id)
            await _release(session, opened.demo.id)
            await _upload(session, opened.demo.id)
        yield opened


async def _give_credentials(session: AsyncSession, project_id: UUID) -> None:
    row = await apis.get(session, project_id, "cups", document=False)
    for principal in ("", "bea"):
        await credentials.put(session, row.id, "key", principal, kind="api_key", value="{}", authorized=True)
    await credentials.note_use(session, row.id, "key", "bea", "refused bea")


async def _upload(session: AsyncSession, project_id: UUID) -> None:
    new = tables.Dataset(
        id=uuid4(), project_id=project_id, name="chats", digest="0", bytes=12_300_000, conversations=1
    )
    await datasets.add(session, new)


async def _release(session: AsyncSession, project_id: UUID) -> None:
    """Two releases that took the same exam, each with its version of a skill."""
    first = await releases.active(session, project_id)
    await task_row(session, project_id)
    assert await queue.claim(session, "me", LEASE) is not None
    await skills.add(session, project_id, new_skill("greet"))
    second = await releases.propose(session, project_id, "f00d")
    await releases.activate(session, second.id)
    await manifest.record_activation(session, second, first, "p")
    await skills.add(session, project_id, new_skill("greet", "def greet(): return 1"))
    interval = {"mean": 50.0, "low": 40.0, "high": 60.0}
    for each in (first, second):
        new = NewEvaluation(
            model=each.model, environment="office", settings={}, figures={"sgc": interval}, release_id=each.id
        )
        await exams.add(session, project_id, new)


async def test_what_rest_keeps_for_a_scope_is_on_no_page_without_it(api: ApiApp) -> None:
    for (address, text), scope in _KEPT.items():
        others = {"tasks", "skills", "approvals"} - {scope}
        assert text in await read_page(api, address, "tasks", scope), (address, text)
        assert text not in await read_page(api, address, *others), (address, text)


async def test_a_key_without_admin_sees_shared_credentials(api: ApiApp) -> None:
    listed, shown = [await read_page(api, address, "tasks") for address in ("/console/apis", "/console/apis/cups")]
    assert "state ready" in listed
    assert 'aria-label="Credentials key"' in shown
