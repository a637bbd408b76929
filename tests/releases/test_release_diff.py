"""Differences between releases, part by part and over HTTP."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.documents.protocols import parse_document
from app.apis.presentation import AppView, OperationTraits
from app.base.run_settings import RunSettings
from app.db.database import Sessions
from app.db.tables import Release
from app.releases import manifest, manifest_store
from app.releases import store as releases
from app.releases.manifest import compare
from app.releases.manifest_store import SkillName
from app.runs import store as runs
from app.skills import store as skills
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.rows import LEASE, new_skill, task_row

NOTHING: dict[str, Any] = {
    "model": None,
    "training_run": None,
    "skills": {"added": [], "removed": []},
    "tools": {"added": [], "removed": [], "changed": {}},
    "prompt": None,
    "empty": True,
}


def document(*names: str, **more: Any) -> dict[str, Any]:
    """One operation per name; each takes a body with the schema in `components`."""
    page = {"name": "page", "in": "query", "schema": {"$ref": "#/components/schemas/Page"}}
    paths = {f"/{name}": {"get": {"operationId": name, "parameters": [page]}} for name in names}
    plain = {"openapi": "3.1.0", "paths": paths, "components": {"schemas": {"Page": {"type": "integer"}}}}
    return plain | more


def traits(content: dict[str, Any]) -> dict[str, OperationTraits]:
    return AppView.of(parse_document("mail", content, server="http://x")).traits


def test_added_and_removed_operations_are_named() -> None:
    found = compare(traits(document("list", "send")), traits(document("list", "trash")))
    assert (found.added, found.removed, found.changed) == (["trash"], ["send"], [])


def test_an_operation_is_changed_by_a_schema_it_refers_to() -> None:
    other = document("list", "send", components={"schemas": {"Page": {"type": "string"}}})
    found = compare(traits(document("list", "send")), traits(other))
    assert (found.added, found.removed, found.changed) == ([], [], ["list", "send"])


def test_a_change_invisible_to_agents_changes_no_operation() -> None:
    found = compare(traits(document("list")), traits(document("list", info={"version": "2"})))
    assert (found.added, found.removed, found.changed) == ([], [], [])


def test_recursive_schemas_are_compared_in_time() -> None:
    fields = {f"f{number}": {"$ref": f"#/components/schemas/S{number}"} for number in range(40)}
    schemas = {f"S{number}": {"type": "object", "properties": fields} for number in range(40)}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    knot = {
        "openapi": "3.1.0",
        "paths": {"/tie": {"post": {"operationId": "tie", "requestBody": body}}},
        "components": {"schemas": schemas},
    }
    assert compare(traits(knot), traits(knot | {"info": {"version": "2"}})).changed == []


class Project:
    """A project with releases to compare, over HTTP."""

    def __init__(self, api: ApiApp) -> None:
        self._edge = api
        self._project = api.demo.id

    async def put(self, session: AsyncSession, name: str, content: dict[str, Any]) -> Release:
        serving = await manifest.lock_active(session, self._project)
        digest = parse_document(name, content, server="http://x").digest
        await apis.put(session, self._project, name, source="upload", document=content, digest=digest)
        return await manifest.update_tools(session, serving, [name], "key me")

    async def activate(self, session: AsyncSession, release: Release, prompt: str = "p") -> None:
        former = await releases.active(session, self._project)
        await releases.activate(session, release.id)
        await manifest.record_activation(session, release, former, prompt)

    async def begin_task(self, session: AsyncSession) -> None:
        await task_row(session, self._project)
        assert await queue.claim(session, "me", LEASE) is not None

    async def diff(self, one: UUID, other: UUID) -> Any:
        answer = await self._edge.client.get(f"/v1/releases/{one}/diff/{other}")
        assert answer.status_code == 200, answer.text
        return answer.json()


PROMPT_DIFF = ["--- before", "+++ after", "@@ -1,2 +1,2 @@", " Be", "-brief.", "+kind."]


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def test_every_part_that_differs_is_shown_and_reversed_in_the_other_direction(api: ApiApp) -> None:
    project = Project(api)
    async with api.sessions.begin() as session:
        for prompt, text in (("p", "Be\nbrief."), ("q", "Be\nkind.")):
            await manifest_store.store_prompt(session, prompt, text)
        first = await project.put(session, "mail", document("list", "send"))
        first = await project.put(session, "notes", document("list"))
        await project.begin_task(session)
        old = await skills.add(session, api.demo.id, new_skill("greet"))
        run = await runs.create(session, api.demo.id, RunSettings())
        second = await releases.propose(session, api.demo.id, "f00d", run.id)
        await project.activate(session, second)
        await manifest.update_prompt(session, api.demo.id, "q")
        await project.begin_task(session)
        new = await skills.add(session, api.demo.id, new_skill("greet", "def greet(): return 1"))
        third = await project.put(session, "mail", document("list", "trash"))
        await apis.delete(session, api.demo.id, "notes")
        third = await manifest.update_tools(session, third, ["notes"], "key me")
        third = await project.put(session, "files", document("open"))
        named = [{"id": str(each.id), "name": "greet", "version": each.version} for each in (old, new)]
        assert [SkillName.of(each).version for each in (old, new)] == [1, 2]
    found = await project.diff(first.id, third.id)
    assert found == {
        "model": {"from": "base", "to": "f00d"},
        "training_run": {"from": None, "to": str(run.id)},
        "skills": {"added": [named[1]], "removed": [named[0]]},
        "tools": {
            "added": ["files"],
            "removed": ["notes"],
            "changed": {"mail": {"added": ["trash"], "removed": ["send"], "changed": [], "renamed": {}}},
        },
        "prompt": {
            "from": "p",
            "to": "q",
            "diff": PROMPT_DIFF,
        },
        "empty": False,
    }
    back = await project.diff(third.id, first.id)
    assert back["model"] == {"from": "f00d", "to": "base"}
    assert back["skills"] == {"added": [named[0]], "removed": [named[1]]}
    assert back["tools"]["changed"] == {
        "mail": {"added": ["send"], "removed": ["trash"], "changed": [], "renamed": {}}
    }
    assert await project.diff(third.id, third.id) == NOTHING


async def test_a_candidate_differs_from_the_active_release_by_its_weights_only(api: ApiApp) -> None:
    project = Project(api)
    async with api.sessions.begin() as session:
        await project.put(session, "mail", document("list"))
        await manifest.update_prompt(session, api.demo.id, "p")
        active = await releases.active(session, api.demo.id)
        await skills.add(session, api.demo.id, new_skill())
        candidate = await releases.propose(session, api.demo.id, "f00d")
    expected = NOTHING | {"model": {"from": "base", "to": "f00d"}, "empty": False}
    assert await project.diff(active.id, candidate.id) == expected


async def test_releases_of_two_projects_or_of_a_hidden_project_are_not_compared(api: ApiApp) -> None:
    other = await api.project("other")
    async with api.sessions() as session:
        mine, theirs = [(await releases.active(session, each.id)).id for each in (api.demo, other)]
    answer = await api.client.get(f"/v1/releases/{mine}/diff/{theirs}")
    assert (answer.status_code, "different projects" in str(problem(answer)["detail"])) == (400, True)
    own = await api.key("tasks", project_id=api.demo.id)
    for one, two in ((mine, theirs), (theirs, mine), (mine, uuid4())):
        hidden = await api.client.get(f"/v1/releases/{one}/diff/{two}", headers=own)
        assert hidden.status_code == 404
        assert "no release has the id" in str(problem(hidden)["detail"])
    assert (await api.client.get(f"/v1/releases/{mine}/diff/nonsense")).status_code == 404
