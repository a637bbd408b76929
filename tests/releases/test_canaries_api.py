"""Canaries and shadow tasks, over HTTP and from the command line."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from app.apis import store as apis
from app.base.errors import EngineError
from app.base.values import Call, Stop
from app.db import results, tables
from app.db.database import Sessions
from app.releases import store as releases
from app.releases import trials_store
from app.releases.trials_store import ShadowOutcome
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.canary_project import Project
from tests.support.http_server import served
from tests.support.ledger import Ledger
from tests.support.rows import trajectory_of, turn_of
from tests.support.sage_command import SageCommand


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@pytest.fixture
async def project(api: ApiApp) -> Project:
    """The demo project, with a candidate and an API that reads and writes."""
    document = Ledger().document("http://ledger.test")
    async with api.sessions.begin() as session:
        await apis.put(session, api.demo.id, "ledger", source="upload", document=document, digest="1")
        candidate = await releases.propose(session, api.demo.id, "f00d")
    return Project(api.sessions, api.demo.id, candidate.id, api.loads)


async def finished(project: Project, *calls: str, score: float | None = None) -> UUID:
    """A finished task of the active release with these calls."""
    [task_id] = await project.ended((await project.release(1)).id, score)
    made = tuple(Call(seq=seq, turn=0, api=api, arguments={}) for seq, api in enumerate(calls))
    async with project.sessions.begin() as session:
        row = await session.get_one(tables.Task, task_id)
        await results.save(session, project.id, trajectory_of(row, turn_of(calls=made)))
    return task_id


async def test_a_canary_starts_shows_live_metrics_and_ends(api: ApiApp, project: Project) -> None:
    path = f"/v1/releases/{project.candidate}/canary"
    assert problem(await api.client.get(path))["detail"] == "release 2 is candidate, not a canary"
    answer = await api.client.post(path, json={"percent": 10})
    assert (answer.status_code, answer.json()["state"], answer.json()["canary_percent"]) == (200, "canary", 10.0)
    assert api.loads.models == ["f00d"]
    await project.ended(project.candidate, 1.0, count=2)
    await project.ended((await project.release(1)).id, 0.5)
    shown = (await api.client.get(path)).json()
    assert (shown["number"], shown["percent"], shown["action"]) == (2, 10.0, "wait")
    assert shown["baseline"] == {"number": 1, "model": "base"}
    assert shown["metrics"]["reward"]["tasks"] == {"canary": 2, "baseline": 1}
    reward = shown["metrics"]["reward"]
    assert (reward["canary"], reward["baseline"]) == (1.0, 0.5)
    assert reward["difference"]["low"] < 0 < reward["difference"]["mean"]
    assert [each["percent"] for each in shown["shares"]] == [10.0]
    assert shown["not_counted"] == {
        "one_sided_tasks": {},
        "one_sided_scores": {},
        "constant_checks": {},
        "vanished": {},
        "all_of": "",
    }
    assert "at most 1998 more scored tasks" in shown["reason"]
    assert (await api.client.delete(path)).json()["state"] == "candidate"
    assert (await api.client.delete(path)).status_code == 409
    log = (await api.client.get("/v1/audit")).json()["entries"]
    assert [(each["actor"], each["action"]) for each in log] == [
        ("key test admin", "canary ended"),
        ("key test admin", "canary began"),
    ]


async def test_a_release_that_cannot_be_a_canary_is_refused_and_nothing_changes(
    api: ApiApp, project: Project
) -> None:
    path = f"/v1/releases/{project.candidate}/canary"
    for percent in (0, 101):
        assert (await api.client.post(path, json={"percent": percent})).status_code == 400
    active = (await project.release(1)).id
    answer = await api.client.post(f"/v1/releases/{active}/canary", json={"percent": 5})
    assert (answer.status_code, problem(answer)["error"]) == (409, "ConflictError")
    api.loads.refusal = EngineError("a replica is down")
    assert (await api.client.post(path, json={"percent": 5})).status_code == 503
    assert (await project.release()).state is tables.ReleaseState.CANDIDATE


async def test_only_an_administrator_of_the_project_starts_canaries_and_shadows(
    api: ApiApp, project: Project
) -> None:
    other = await api.key("admin", project_id=(await api.project("other")).id)
    for kind, body in (("canary", {"percent": 5}), ("shadow", {"tasks": 5})):
        path = f"/v1/releases/{project.candidate}/{kind}"
        assert (await api.client.post(path, json=body, headers=await api.key("tasks"))).status_code == 403
        assert (await api.client.post(path, json=body, headers=other)).status_code == 404
        assert (await api.client.get(path, headers=other)).status_code == 404
    assert api.loads.models == []


async def test_shadows_are_queued_and_compared_in_pairs(api: ApiApp, project: Project) -> None:
    path = f"/v1/releases/{project.candidate}/shadow"
    await finished(project, "ledger.add_entry", score=1.0)
    refused = await api.client.post(path, json={})
    assert (refused.status_code, "x-safe" in str(problem(refused)["detail"])) == (409, True)
    for score in (1.0, 0.0, None):
        await finished(project, "ledger.list_entries", score=score)
    answer = await api.client.post(path, json={"tasks": 50})
    assert (answer.status_code, answer.json()["tasks"], answer.json()["pending"]) == (202, 3, 3)
    for failure in (None, None, "it tried to write: ledger.add_entry"):
        outcome = ShadowOutcome(stop=Stop.COMPLETED, score=1.0, turns=4, generated_tokens=50, failure=failure)
        async with api.sessions.begin() as session:
            shadow = await trials_store.claim(session, "me", 30)
            assert shadow is not None
            await trials_store.finish(session, shadow, outcome)
    shown = (await api.client.get(path)).json()
    assert (shown["pending"], shown["failures"]) == (0, {"it tried to write: ledger.add_entry": 1})
    assert [shown["score"][name] for name in ("tasks", "before", "shadow")] == [2, 0.5, 1.0]
    assert shown["score"]["difference"] == {"mean": 0.5, "low": 0.0, "high": 1.0}
    assert [shown["turns"][name] for name in ("tasks", "before", "shadow")] == [3, 2.0, 4.0]
    assert shown["tokens"]["difference"] == {"mean": -50.0, "low": -50.0, "high": -50.0}


async def test_the_command_line_starts_shows_and_ends_them(api: ApiApp, project: Project) -> None:
    await finished(project, "ledger.list_entries")
    async with served(api) as client:
        shell = SageCommand(api, str(client.base_url))
        begun = await shell.run("releases", "2", "--canary", "12.5", "--shadow", "5")
        assert begun.code == 0, begun.err
        lines = [line.split() for line in begun.out.splitlines()]
        assert ["canary_percent", "12.5"] in lines
        assert ["canary", "action", "wait"] in [line[:3] for line in lines]
        assert ["shadow", "pending", "1"] in lines
        ended = await shell.run("releases", "2", "--canary", "0")
        assert ["state", "candidate"] in [line.split() for line in ended.out.splitlines()]
        refused = await shell.run("releases", "--canary", "5")
        assert "name the release" in refused.err
