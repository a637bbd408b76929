"""Releases as manifests: what is served with the weights, what changes it, and what a rollback restores."""

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.projects import audit
from app.releases import manifest, tools
from app.releases import store as releases
from app.releases.tools import ApiDocument
from app.tasks import queue
from tests.support.release_steps import activate
from tests.support.rows import LEASE, project_row, task_row


async def put(session: AsyncSession, project_id: UUID, name: str, version: int = 1) -> tables.Release:
    """As the API does it. The document contains its version."""
    serving = await manifest.lock_active(session, project_id)
    document, digest = {"version": version}, f"{name} {version}"
    await apis.put(session, project_id, name, source=f"http://{version}", document=document, digest=digest)
    return await manifest.update_tools(session, serving, [name], "key me")


async def remove(session: AsyncSession, project_id: UUID, name: str) -> tables.Release:
    serving = await manifest.lock_active(session, project_id)
    await apis.delete(session, project_id, name)
    return await manifest.update_tools(session, serving, [name], "key me")


async def begin_task(session: AsyncSession, project_id: UUID) -> tables.Task:
    await task_row(session, project_id)
    claimed = await queue.claim(session, "me", LEASE)
    assert claimed is not None
    return claimed


async def served(session: AsyncSession, release: tables.Release) -> list[tuple[str, int]]:
    """Name and version of each document that its tasks see."""
    found = await tools.api_documents(session, release)
    return [(each.name, (await document_of(session, each))["version"]) for each in found]


async def document_of(session: AsyncSession, api: ApiDocument) -> Any:
    return json.loads(await apis.document(session, api.id, api.digest))


async def test_a_project_without_tasks_keeps_its_release_while_its_apis_are_registered(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    for name in ("mail", "notes"):
        assert (await put(session, project.id, name)).number == 1
    first = await releases.active(session, project.id)
    assert await served(session, first) == [("mail", 1), ("notes", 1)]


async def test_another_document_makes_another_release_with_the_same_weights(session: AsyncSession) -> None:
    project = await project_row(session)
    await activate(session, await releases.propose(session, project.id, "f00d"))
    await put(session, project.id, "mail")
    task = await begin_task(session, project.id)
    release = await put(session, project.id, "mail", 2)
    assert (release.number, release.model, release.state) == (3, "f00d", ReleaseState.ACTIVE)
    assert release.evidence == {"reason": "the API mail changed"}
    assert task.release_id is not None
    former = await releases.get(session, task.release_id)
    assert (former.number, former.state) == (2, ReleaseState.RETIRED)
    assert (await served(session, former), await served(session, release)) == ([("mail", 1)], [("mail", 2)])
    [entry] = [
        each for each in (await audit.page(session, project.id, limit=9)).items if each.release_id == release.id
    ]
    assert (entry.actor, entry.detail["reason"]) == ("key me", "the API mail changed")
    assert entry.detail["tools"] == {"was": former.tools, "now": release.tools}


async def test_the_same_document_again_changes_nothing(session: AsyncSession) -> None:
    project = await project_row(session)
    await put(session, project.id, "mail")
    await begin_task(session, project.id)
    assert (await put(session, project.id, "mail")).number == 1
    assert (await put(session, project.id, "mail", 2)).number == 2


async def test_an_old_document_is_used_with_the_current_server(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await put(session, project.id, "mail")
    await begin_task(session, project.id)
    await put(session, project.id, "mail", 2)
    await apis.put(
        session,
        project.id,
        "mail",
        source="upload",
        document={"version": 2},
        digest="mail 2",
        server="http://now",
        token="s",
    )
    [document] = await tools.api_documents(session, first)
    assert (await document_of(session, document), document.digest) == ({"version": 1}, "mail 1")
    assert (document.source, document.server, document.token) == ("upload", "http://now", "s")


async def test_a_removed_api_is_offered_by_no_release_and_named_by_a_rollback(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    await put(session, project.id, "mail")
    first = await put(session, project.id, "notes")
    await begin_task(session, project.id)
    second = await remove(session, project.id, "mail")
    assert second.number == 2
    assert await served(session, second) == await served(session, first) == [("notes", 1)]
    assert (await activate(session, first))["tools"] == {"missing": ["mail"]}


async def test_after_a_rollback_a_change_of_one_api_keeps_the_others_rolled_back(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    await put(session, project.id, "mail")
    first = await put(session, project.id, "notes")
    await begin_task(session, project.id)
    await put(session, project.id, "mail", 2)
    await activate(session, first)
    third = await put(session, project.id, "notes", 2)
    assert await served(session, third) == [("mail", 1), ("notes", 2)]
    candidate = await releases.propose(session, project.id, "f00d")
    assert await served(session, candidate) == await served(session, third), "it would serve with what serves"
    await activate(session, candidate)
    assert candidate.tools == third.tools
    fourth = await put(session, project.id, "mail", 2)
    assert await served(session, fourth) == [("mail", 2), ("notes", 2)], "putting it says that it is to be served"


async def test_a_changed_prompt_makes_another_release_and_cannot_be_rolled_back(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    assert (await manifest.update_prompt(session, project.id, "old")).prompt == "old"
    await begin_task(session, project.id)
    assert (await manifest.update_prompt(session, project.id, "old")).number == 1
    second = await manifest.update_prompt(session, project.id, "new")
    assert (second.number, second.prompt, second.evidence) == (2, "new", {"reason": "the prompt changed"})
    assert first.prompt == "old"
    assert (await activate(session, first, prompt="new"))["prompt"] == {"was": "old", "now": "new"}
    assert first.prompt == "new", "the row says what serves"


async def test_the_first_task_of_a_release_records_its_prompt(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await releases.active(session, project.id)
    for prompt in ("one", "two"):
        await manifest.begin_serving(session, project.id, first.id, prompt)
        await session.refresh(first)
    assert first.prompt == "one"


async def test_a_task_claimed_while_tools_change_is_pinned_to_what_it_will_see(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        await task_row(session, project.id)

    async def claim() -> tables.Task | None:
        async with committed.begin() as session:
            return await queue.claim(session, "me", LEASE)

    async with committed.begin() as session:
        await put(session, project.id, "mail")
        claiming = asyncio.create_task(claim())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(claiming), 0.3)
    task = await claiming
    assert task is not None
    assert task.release_id is not None
    async with committed.begin() as session:
        assert await served(session, await releases.get(session, task.release_id)) == [("mail", 1)]
        assert (await put(session, project.id, "mail", 2)).number == 2


async def test_apis_put_concurrently_are_all_served(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        await begin_task(session, project.id)

    async def add(name: str) -> None:
        async with committed.begin() as session:
            await put(session, project.id, name)

    await asyncio.gather(*(add(name) for name in "abcd"))
    async with committed() as session:
        active = await releases.active(session, project.id)
        assert await served(session, active) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
