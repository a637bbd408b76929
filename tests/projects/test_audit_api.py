"""The audit log, and releases proposed from an adapter."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.base.errors import AdapterError
from app.db.database import Sessions
from app.projects import store as projects
from app.releases import manifest_store
from app.releases import store as releases
from app.skills import moves
from app.skills import store as skills
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.named_adapters import cut_short, make_named
from tests.support.rows import new_skill
from tests.support.tiny_model import make_model_dir


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def api(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url, directory=tmp_path) as opened:
        yield opened


async def propose(api: ApiApp, name: str, **more: Any) -> Any:
    return await api.client.post("/v1/releases", json={"adapter": name, "project": "demo"}, **more)


async def log(api: ApiApp, **query: Any) -> list[dict[str, Any]]:
    answer = await api.client.get("/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()["entries"]
    return entries


async def release(api: ApiApp, project_id: UUID, model: str = "a" * 32) -> str:
    async with api.sessions.begin() as session:
        return str((await releases.propose(session, project_id, model)).id)


async def test_a_proposed_adapter_becomes_a_candidate_that_can_be_activated(
    api: ApiApp, model_dir: Path, tmp_path: Path
) -> None:
    name = make_named(model_dir, tmp_path, 1)
    made = (await propose(api, name)).json()
    assert (made["state"], made["model"], made["training_run_id"]) == ("candidate", name, None)
    async with api.sessions() as session:
        row = await manifest_store.get(session, name)
        assert (row.base, row.rank, row.probe) == ("seed", 4, None)
    assert (await api.client.post(f"/v1/releases/{made['id']}/activate")).json()["state"] == "active"
    assert api.loads.models == [name]


async def test_an_unusable_adapter_is_refused(api: ApiApp, model_dir: Path, tmp_path: Path) -> None:
    cut, nan = make_named(model_dir, tmp_path, 2), make_named(model_dir, tmp_path, 3, fill=float("nan"))
    cut_short(tmp_path, cut)
    for name, words in ((cut, "cut off"), (nan, "not finite"), ("0" * 32, "there is no adapter")):
        answer = await propose(api, name)
        assert (answer.status_code, problem(answer)["error"]) == (400, "InvalidError")
        assert words in answer.json()["detail"]
    assert [each["number"] for each in (await api.client.get("/v1/releases")).json()] == [1]


async def test_an_adapter_of_another_base_model_is_refused(api: ApiApp, model_dir: Path, tmp_path: Path) -> None:
    name = make_named(model_dir, tmp_path, 1)
    async with api.sessions.begin() as session:
        await manifest_store.put(session, name, base="another", rank=4, project_id=None)
    answer = await propose(api, name)
    assert answer.status_code == 400
    assert "was trained on another, but seed is served" in answer.json()["detail"]


async def test_a_projects_administrator_proposes_adapters_of_the_project_and_of_all_and_no_others(
    api: ApiApp, model_dir: Path, tmp_path: Path
) -> None:
    other = await api.project("other")
    mine, theirs = [await api.key("admin", project_id=each.id) for each in (api.demo, other)]
    trained, added, everybodys = [make_named(model_dir, tmp_path, seed) for seed in range(3)]
    async with api.sessions.begin() as session:
        await manifest_store.put(session, trained, base="seed", rank=4, project_id=other.id)
    assert (await propose(api, everybodys)).status_code == 201

    async def status(name: str, key: dict[str, str]) -> int:
        answer = await api.client.post("/v1/releases", json={"adapter": name}, headers=key)
        return int(answer.status_code)

    for name, expected in ((trained, 404), (added, 404), (everybodys, 201)):
        assert (await status(name, theirs), await status(name, mine)) == (201, expected)
    assert len((await api.client.get("/v1/releases?project=demo")).json()) == 3


@pytest.mark.parametrize("name", ["../" + "a" * 32, "A" * 32, "a", ""])
async def test_an_adapter_name_that_is_not_a_hash_is_refused(api: ApiApp, name: str) -> None:
    assert (await propose(api, name)).status_code == 400


async def test_the_log_names_who_activated_what_and_has_the_proofs_of_the_servers(api: ApiApp) -> None:
    release_id = await release(api, api.demo.id)
    api.loads.refusal = AdapterError("off by 0.3")
    await api.client.post(f"/v1/releases/{release_id}/activate")
    api.loads.refusal = None
    await api.client.post(f"/v1/releases/{release_id}/activate")
    activated, refused = await log(api)
    assert (activated["actor"], activated["action"], activated["project"]) == (
        "key test admin",
        "activated",
        "demo",
    )
    assert activated["release_id"] == refused["release_id"] == release_id
    assert activated["detail"]["serves"]["model"] == "a" * 32
    assert activated["detail"]["swap"]["replicas"][0]["distance"] == 0.5
    assert (refused["action"], refused["detail"]["reason"]) == ("refused", "off by 0.3")


async def test_the_log_is_paged_and_filtered_by_project_and_release(api: ApiApp) -> None:
    other = await api.project("other")
    ids = [await release(api, api.demo.id), await release(api, api.demo.id), await release(api, other.id)]
    for each in ids:
        await api.client.post(f"/v1/releases/{each}/activate")
    assert [each["release_id"] for each in await log(api)] == ids[::-1]
    assert [each["release_id"] for each in await log(api, project="demo")] == ids[1::-1]
    assert [each["release_id"] for each in await log(api, release_id=ids[0])] == ids[:1]
    first = (await api.client.get("/v1/audit", params={"limit": 2})).json()
    rest = (await api.client.get("/v1/audit", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [each["release_id"] for each in first["entries"] + rest["entries"]] == ids[::-1]
    assert rest["next_cursor"] is None


async def test_only_an_administrator_reads_the_log_of_the_projects_the_key_sees(api: ApiApp) -> None:
    other = await api.project("other")
    await api.client.post(f"/v1/releases/{await release(api, api.demo.id)}/activate")
    assert (await api.client.get("/v1/audit", headers=await api.key("tasks"))).status_code == 403
    mine = await api.key("admin", project_id=other.id)
    assert (await api.client.get("/v1/audit", headers=mine)).json()["entries"] == []
    assert (await propose(api, "a" * 32, headers=mine)).status_code == 404
    assert (await propose(api, "a" * 32, headers=await api.key("tasks"))).status_code == 403


async def test_keys_are_audited_without_their_secret(api: ApiApp) -> None:
    made = (await api.client.post("/v1/keys", json={"name": "ci", "scopes": ["tasks"], "project": "demo"})).json()
    await api.client.post("/v1/keys", json={"name": "all", "scopes": ["admin"]})
    await api.client.delete(f"/v1/keys/{made['id']}")
    revoked, other, created = await log(api)
    assert (revoked["action"], revoked["project"]) == ("key revoked", "demo")
    assert (other["action"], other["project"], other["detail"]["name"]) == ("key created", None, "all")
    known = {"key": made["id"], "name": "ci", "prefix": made["prefix"], "scopes": ["tasks"]}
    assert (created["actor"], created["detail"]) == ("key test admin", known)
    assert made["secret"] not in str([revoked, other, created])


async def test_the_entries_of_a_deleted_project_stay_for_keys_of_all_projects(api: ApiApp) -> None:
    await api.client.post("/v1/projects", json={"name": "short"})
    async with api.sessions.begin() as session:
        project = await projects.by_name(session, "short")
        skill = await skills.add(session, project.id, new_skill("greet"))
        await moves.retire(session, skill.id, "key someone")
    await api.client.post("/v1/keys", json={"name": "ci", "scopes": ["tasks"], "project": "short"})
    assert (await api.client.delete("/v1/projects/short")).status_code == 204
    entries = await log(api)
    actions = ["project deleted", "key created", "skill moved", "skill moved", "project created"]
    assert [entry["action"] for entry in entries] == actions
    assert {entry["project"] for entry in entries} == {"short"}
    assert [key["name"] for key in entries[0]["detail"]["keys"]] == ["ci"]
    assert (await api.client.get("/v1/audit?project=short")).status_code == 404
    await api.client.post("/v1/projects", json={"name": "short"})
    assert [entry["action"] for entry in await log(api, project="short")] == ["project created"]
    own = await api.key("admin", project_id=api.demo.id)
    assert (await api.client.get("/v1/audit", headers=own)).json()["entries"] == []
