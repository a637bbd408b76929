"""Releases whose policy is a hosted model: proposed, activated and rolled back like any other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import func, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.prompts import hosted_prompt
from app.base.errors import ConflictError, EngineRefusalError
from app.base.values import BASE, Probe, hosted
from app.db import tables
from app.db.database import Sessions
from app.releases import hosted_models, trials_store
from app.releases import store as releases
from app.releases.promotion import Promoter
from app.releases.swap import SwapReport
from app.tasks import queue
from tests.support.api_app import PROMPT, ApiApp, open_api_app, problem
from tests.support.every_row import every_row
from tests.support.hosted_project import hosted_entry
from tests.support.http_server import served
from tests.support.ledger_project import until
from tests.support.sage_command import SageCommand


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def propose(api: ApiApp, **body: Any) -> Any:
    return await api.client.post("/v1/releases", json=body)


async def activate(api: ApiApp, release: str) -> Any:
    return await api.client.post(f"/v1/releases/{release}/activate")


async def test_a_hosted_model_becomes_a_release_is_activated_and_rolled_back(api: ApiApp) -> None:
    entry = await hosted_entry(api.sessions, api.demo.id)
    proposed = (await propose(api, hosted="claude", reason="it is better")).json()
    assert (proposed["number"], proposed["state"], proposed["model"]) == (2, "candidate", "claude")
    planned = (await api.client.get(f"/v1/releases/{proposed['id']}/activate")).json()
    assert (planned["model"], planned["prompt"]) == ({"from": BASE, "to": "claude"}, "hosted")
    active = (await activate(api, proposed["id"])).json()
    assert (active["state"], active["prompt_hash"]) == ("active", hosted_prompt())
    assert api.loads.models == [hosted(entry.id)]
    first = await _first(api)
    found = await api.client.get(f"/v1/releases/{proposed['id']}/diff/{first}")
    back = (await activate(api, first)).json()
    assert (back["changes"]["rolls_back"], back["changes"]["model"]) == (True, {"from": "claude", "to": BASE})
    assert (back["changes"]["prompt"], back["changes"]["former_prompt"]) == ("local", None)
    assert (back["prompt_hash"], found.json()["model"]) == (PROMPT, {"from": "claude", "to": BASE})
    entries = (await api.client.get("/v1/audit")).json()["entries"]
    assert {"model": "claude", "reason": "it is better"} in [each["detail"] for each in entries]


async def _first(api: ApiApp) -> str:
    return str((await api.client.get("/v1/releases")).json()[-1]["id"])


async def test_what_is_no_policy_is_refused(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    for body in ({}, {"hosted": "claude", "adapter": "a" * 32}):
        answer = await propose(api, **body)
        assert (answer.status_code, problem(answer)["detail"]) == (400, "give either `adapter` or `hosted`")
    answer = await propose(api, hosted="gpt")
    assert answer.status_code == 404
    assert "no hosted model named 'gpt'" in str(problem(answer)["detail"])


async def test_a_model_whose_endpoint_refuses_does_not_serve(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    release = (await propose(api, hosted="claude")).json()["id"]
    api.loads.refusal = EngineRefusalError("http://tables.test/v1 refuses the key (401: no such key)")
    answer = await activate(api, release)
    assert (answer.status_code, await _state(api, release)) == (503, "candidate")
    assert "refuses the key" in str(problem(answer)["detail"])


async def _state(api: ApiApp, release: str) -> str:
    return str((await api.client.get(f"/v1/releases/{release}")).json()["state"])


async def test_a_rejected_hosted_model_stays_so_in_another_release(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    first, second = [(await propose(api, hosted="claude")).json()["id"] for _ in range(2)]
    async with api.sessions.begin() as session:
        await releases.reject(session, UUID(first), {"reason": "worse"})
    assert (await activate(api, first)).status_code == 409
    answer = await activate(api, second)
    assert (answer.status_code, "rejected (as release 2" in str(problem(answer)["detail"])) == (409, True)


async def test_a_hosted_model_serves_a_share_of_the_tasks_as_a_canary(api: ApiApp) -> None:
    entry = await hosted_entry(api.sessions, api.demo.id)
    release = (await propose(api, hosted="claude")).json()["id"]
    began = await api.client.post(f"/v1/releases/{release}/canary", json={"percent": 100})
    assert (began.json()["state"], began.json()["model"]) == ("canary", "claude")
    assert api.loads.models == [hosted(entry.id)]
    await api.submit()
    async with api.sessions.begin() as session:
        task = await queue.claim(session, "me", 30)
        assert task is not None
        assert str(task.release_id) == release
        assert await releases.local_projects(session) == [api.demo.id], "its other tasks need the model servers"
    shown = (await api.client.get(f"/v1/releases/{release}/canary")).json()
    assert shown["baseline"] == {"number": 1, "model": BASE}
    ended = await api.client.delete(f"/v1/releases/{release}/canary")
    assert ended.json()["state"] == "candidate"


async def test_projects_with_a_hosted_policy_stand_beside_others(api: ApiApp) -> None:
    entry = await hosted_entry(api.sessions, api.demo.id)
    release = (await propose(api, hosted="claude")).json()["id"]
    await activate(api, release)
    other = (await api.client.post("/v1/projects", json={"name": "other"})).json()
    async with api.sessions() as session:
        local = await releases.local_projects(session)
        rows = dict(await releases.serving(session))
    assert [str(each) for each in local] == [other["id"]]
    assert {name: row.policy for name, row in rows.items()} == {"demo": "claude", "other": BASE}
    assert rows["demo"].model == hosted(entry.id)


async def test_the_command_makes_a_release_of_a_hosted_model(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    async with served(api) as client:
        shell = SageCommand(api, str(client.base_url))
        ended = await shell.run("releases", "--hosted", "claude", "--activate", "--reason", "by hand")
        assert ended.code == 0, ended.err
        shown = [line.split(maxsplit=1) for line in ended.out.splitlines()]
        assert (["state", "active"] in shown, ["model", "claude"] in shown) == (True, True)
        assert "weights: base -> claude" in ended.err
        assert "prompt: that of hosted models" in ended.err
        listed = await shell.run("releases")
        assert listed.out.splitlines()[1].split()[:3] == ["2", "active", "claude"]
        both = await shell.run("releases", "--hosted", "claude", "2")
        assert (both.code, "--hosted creates a release" in both.err) == (2, True)


async def _remove(sessions: Sessions, project_id: UUID) -> None:
    async with sessions.begin() as session:
        await hosted_models.delete(session, project_id, "claude")


class Removing:
    """A swapper in whose time the model is removed."""

    def __init__(self, api: ApiApp) -> None:
        self._api = api

    async def swap(self, model: str, probe: Probe | None) -> msgspec.Struct:  # noqa: ARG002
        await _remove(self._api.sessions, self._api.demo.id)
        return SwapReport(model=model, seconds=0.0)


async def test_a_model_that_is_removed_while_its_release_is_activated_does_not_serve(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    release = UUID((await propose(api, hosted="claude")).json()["id"])
    with pytest.raises(ConflictError, match="the hosted model of release 2 was removed"):
        await Promoter(api.sessions, Removing(api), PROMPT).activate(release, "key me")
    assert await _state(api, str(release)) == "candidate"
    assert (await _first_row(api)).state is tables.ReleaseState.ACTIVE


async def _first_row(api: ApiApp) -> tables.Release:
    async with api.sessions() as session:
        return await releases.numbered(session, api.demo.id, 1)


async def test_a_release_whose_model_was_removed_serves_in_no_way(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    release = UUID((await propose(api, hosted="claude")).json()["id"])
    await _remove(api.sessions, api.demo.id)

    async def begin(session: AsyncSession) -> None:
        await trials_store.begin(session, release, 10)

    async def approve(session: AsyncSession) -> None:
        await releases.approve(session, release, {})

    async def activate(session: AsyncSession) -> None:
        await releases.activate(session, release)

    with every_row() as row:
        for move in (begin, approve, activate):
            with row(move.__name__):
                with pytest.raises(ConflictError, match="was removed: activate another one"):
                    async with api.sessions.begin() as session:
                        await move(session)
                assert await _state(api, str(release)) == "candidate"


async def _waits(api: ApiApp) -> None:
    """Until a transaction waits for another one."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )

    async def waits() -> bool:
        async with api.sessions() as session:
            return bool(await session.scalar(query))

    await until(waits)


async def test_whoever_removes_a_model_and_whoever_proposes_it_lock_in_one_order(
    api: ApiApp,
) -> None:
    """Also one that has the model locked before, as whoever lets it do tasks again."""

    async def propose_release(session: AsyncSession) -> None:
        await hosted_models.propose(session, api.demo.id, "claude")

    async def lock_first(session: AsyncSession) -> None:
        await hosted_models.get(session, api.demo.id, "claude", lock=True)

    with every_row() as row:
        for first in (propose_release, lock_first):
            with row(first.__name__):
                await hosted_entry(api.sessions, api.demo.id)
                async with api.sessions.begin() as session:
                    await first(session)
                    removing = asyncio.create_task(_remove(api.sessions, api.demo.id))
                    await _waits(api)
                    await hosted_models.propose(session, api.demo.id, "claude")
                await removing


async def test_no_release_is_made_of_a_model_that_is_being_removed_or_becomes_another(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    async with api.sessions.begin() as session:
        row = await hosted_models.get(session, api.demo.id, "claude", lock=True)
        proposing = asyncio.create_task(propose(api, hosted="claude"))
        await _waits(api)
        await hosted_models.change(session, row, model="m-2")
    assert (await proposing).json()["number"] == 2, "it is of the other model"
    async with api.sessions.begin() as session:
        await hosted_models.delete(session, api.demo.id, "claude")
        proposing = asyncio.create_task(propose(api, hosted="claude"))
        await _waits(api)
    assert (await proposing).status_code == 404


async def test_a_model_on_which_tasks_run_or_wait_is_not_removed(api: ApiApp) -> None:
    """Also a task that is being claimed meanwhile."""
    await hosted_entry(api.sessions, api.demo.id)
    release = (await propose(api, hosted="claude")).json()["id"]
    await activate(api, release)
    task = (await api.client.post("/v1/tasks", json={"instruction": "hello"})).json()["id"]
    async with api.sessions.begin() as session:
        claimed = await queue.claim(session, "host:1 a", 60)
        assert claimed is not None
        assert (str(claimed.id), str(claimed.release_id)) == (task, release)
        await activate(api, await _first(api))
        removing = asyncio.create_task(api.client.delete("/v1/hosted-models/claude"))
        await _waits(api)
    refused = await removing
    why = f"tasks still run on the model claude, or wait for it: let these end, or cancel them: {task}"
    assert (refused.status_code, why in refused.text) == (409, True)
    async with api.sessions.begin() as session:
        await session.execute(update(tables.Task).values(state="cancelled", finished_at=func.now()))
    assert (await api.client.delete("/v1/hosted-models/claude")).status_code == 204


async def test_the_name_of_a_removed_model_stays_with_its_releases_and_their_tasks(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    release = (await propose(api, hosted="claude")).json()["id"]
    task = (await api.client.post("/v1/tasks", json={"instruction": "hello"})).json()["id"]
    async with api.sessions.begin() as session:
        ended = {"state": "cancelled", "finished_at": func.now(), "release_id": UUID(release)}
        await session.execute(update(tables.Task).values(**ended))
    await _remove(api.sessions, api.demo.id)
    await hosted_entry(api.sessions, api.demo.id)  # another one of this name
    shown = (await api.client.get(f"/v1/releases/{release}")).json()
    served = (await api.client.get(f"/v1/tasks/{task}")).json()["release"]
    assert (shown["model"], served["model"]) == ("claude (removed)", "claude (removed)")


def test_a_release_of_another_model_is_known_by_its_own_name() -> None:
    assert tables.Release(model="a" * 32).policy == "a" * 32
