"""A finished task is done again by another release on its recorded calls, over REST: scripted policies."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.db import tables
from app.releases import store as releases
from app.sandbox.forked_sandbox import ForkedSandbox
from app.tasks.shadows import ShadowRunner
from tests.support.api_app import ApiApp
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, put_ledger, until
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.tasks.test_shadow import DONE, READ, ask, pairs, propose, served

WRITE = "print(apis.ledger.add_entry(text='x'))"
CHECK = "score = float(answer == 7 and len(apis.ledger.list_entries()) == 1)"


@pytest.fixture
async def project(api: ApiApp, bare_sandbox: ForkedSandbox, tmp_path: Path) -> AsyncIterator[LedgerProject]:
    """The demo project, with the ledger as its API."""
    ledger = Ledger()
    async with api.sessions.begin() as session:
        await put_ledger(session, api.demo.id, ledger, "http://ledger.test")
    async with ledger.client() as client:
        yield LedgerProject(api.sessions, bare_sandbox, byte_tokenizer(tmp_path), ledger, client, api.demo.id)


async def replayed(
    api: ApiApp, project: LedgerProject, task_id: UUID, release: tables.Release, *codes: str
) -> dict[str, Any]:
    """The comparison with what a release does that writes these turns."""
    asked = await api.client.post(f"/v1/tasks/{task_id}/replay", json={"release": release.number})
    assert asked.status_code == 202
    assert asked.json()["pending"] is True
    engine = ScriptedEngine(project.tokenizer, *map(block, codes))

    async def show() -> dict[str, Any]:
        found = await api.client.get(f"/v1/tasks/{task_id}/replay", params={"release": release.number})
        assert found.status_code == 200
        body: dict[str, Any] = found.json()
        return body

    async def has_ended() -> bool:
        return not (await show())["pending"]

    async with ShadowRunner(project.sessions, project.executor(engine), lambda: True, pause=0.1):
        await until(has_ended)
    return await show()


async def test_a_replay_is_shown_turn_by_turn_beside_its_task_and_reaches_no_api(
    api: ApiApp, project: LedgerProject
) -> None:
    task_id = await served(project, READ, WRITE, READ, DONE, check_code=CHECK)
    reads, entries = project.ledger.reads, list(project.ledger.entries)
    release = await propose(project)
    compared = await replayed(api, project, task_id, release, READ, f"{WRITE}\n{DONE}")
    assert (project.ledger.reads, project.ledger.entries) == (reads, entries), "nothing goes out"
    assert (compared["failure"], compared["same_changes"], compared["same_answer"]) == (None, True, True)
    assert (compared["task"]["turns"], compared["replay"]["turns"]) == (4, 2)
    assert (compared["task"]["score"], compared["replay"]["score"]) == (1.0, 1.0)
    assert (compared["task"]["release"], compared["replay"]["release"]) == (1, release.number)
    assert [pair["same"] for pair in compared["turns"]] == [True, False, False, False]
    assert [pair["replay"] is None for pair in compared["turns"]] == [False, False, True, True]
    first, second = compared["turns"][:2]
    assert first["replay"]["observation"] == first["task"]["observation"]
    assert [call["api"] for call in second["replay"]["calls"]] == ["ledger.add_entry"]


async def test_a_replay_that_asks_what_the_task_did_not_ends_there_and_says_so(
    api: ApiApp, project: LedgerProject
) -> None:
    task_id = await served(project, READ, DONE, check_code=CHECK)
    compared = await replayed(api, project, task_id, await propose(project), WRITE, DONE)
    assert compared["replay"]["stop_reason"] == "in_doubt"
    assert compared["failure"] == "no recorded call answers ledger.add_entry with these values, in this order"
    assert compared["replay"]["score"] is None, "unknown is not a failure"
    assert project.ledger.entries == []


async def test_a_check_that_reads_what_is_not_recorded_gives_no_score(api: ApiApp, project: LedgerProject) -> None:
    task_id = await served(project, WRITE, DONE, check_code=CHECK)
    compared = await replayed(api, project, task_id, await propose(project), WRITE, DONE)
    assert (compared["same_changes"], compared["replay"]["score"]) == (True, None)
    assert compared["failure"].startswith("the check asked what the task had not: ")


async def test_a_replay_does_not_count_as_a_shadow_and_is_done_once(api: ApiApp, project: LedgerProject) -> None:
    task_id = await served(project, READ, DONE)
    release = await propose(project)
    await replayed(api, project, task_id, release, DONE)
    assert await pairs(project, release) == []
    assert await ask(project, release) == 1, "it can be a shadow, too"
    again = await api.client.post(f"/v1/tasks/{task_id}/replay", json={"release": release.number})
    assert (again.status_code, again.json()["pending"]) == (202, False)


async def test_what_cannot_be_replayed_is_refused(api: ApiApp, project: LedgerProject) -> None:
    task_id = await served(project, READ, DONE)
    waiting = await project.submit()
    unfinished = await api.client.post(f"/v1/tasks/{waiting}/replay", json={"release": 1})
    assert (unfinished.status_code, "has no trajectory" in unfinished.json()["detail"]) == (404, True)
    path = f"/v1/tasks/{task_id}/replay"
    unknown = await api.client.post(path, json={"release": 99})
    assert (unknown.status_code, "has no release 99" in unknown.json()["detail"]) == (404, True)
    not_asked = await api.client.get(path, params={"release": 1})
    assert (not_asked.status_code, "has not replayed the task" in not_asked.json()["detail"]) == (404, True)
    for number in (0, "x", None):
        assert (await api.client.post(path, json={"release": number})).status_code == 400


async def test_what_could_not_be_executed_is_replayed_again_when_asked_for(
    api: ApiApp, project: LedgerProject
) -> None:
    task_id = await served(project, READ, DONE)
    release = await propose(project)
    async with project.sessions.begin() as session:
        row = tables.Shadow(release_id=release.id, task_id=task_id, recorded=True, failure="no such model")
        row.finished_at = (await releases.active(session, project.id)).created_at
        session.add(row)
    compared = await replayed(api, project, task_id, release, READ, DONE)
    assert (compared["failure"], compared["same_answer"]) == (None, True)
