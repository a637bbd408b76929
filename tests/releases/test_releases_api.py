"""The release routes: list, show, activate, roll back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.base.errors import AdapterError, EngineError, StorageError
from app.base.run_settings import RunSettings
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.releases import store as releases
from app.runs import store as runs
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.every_row import every_row


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def propose(api: ApiApp, model: str = "a" * 32) -> UUID:
    async with api.sessions.begin() as session:
        run = await runs.create(session, api.demo.id, RunSettings())
        return (await releases.propose(session, api.demo.id, model, run.id)).id


async def activate(api: ApiApp, release_id: UUID, query: str = "", **more: Any) -> Any:
    return await api.client.post(f"/v1/releases/{release_id}/activate{query}", **more)


async def states(api: ApiApp) -> list[tuple[int, str]]:
    listed = (await api.client.get("/v1/releases")).json()
    return [(each["number"], each["state"]) for each in listed]


async def test_a_release_shows_its_run_its_evidence_and_when_it_was_activated(api: ApiApp) -> None:
    release_id = await propose(api)
    async with api.sessions.begin() as session:
        await releases.record_evidence(session, release_id, {"sgc": 0.9})
    found = (await api.client.get(f"/v1/releases/{release_id}")).json()
    assert (found["number"], found["state"], found["evidence"]) == (2, "candidate", {"sgc": 0.9})
    run = (await api.client.get(f"/v1/training-runs/{found['training_run_id']}")).json()
    assert run["kind"] == "logged"
    assert found["activated_at"] is None
    assert (await activate(api, release_id)).json()["activated_at"]


async def test_activating_loads_the_weights_and_activating_an_older_release_rolls_back(
    api: ApiApp,
) -> None:
    release_id = await propose(api)
    answer = await activate(api, release_id)
    assert (answer.status_code, answer.json()["state"]) == (200, "active")
    assert api.loads.models == ["a" * 32]
    assert await states(api) == [(2, "active"), (1, "retired")]
    first = (await api.client.get("/v1/releases")).json()[-1]["id"]
    assert (await activate(api, first)).json()["state"] == "active"
    assert await states(api) == [(2, "retired"), (1, "active")]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(AdapterError("there is no adapter in ..."), 409), (EngineError("the engine is unreachable"), 503)],
)
async def test_if_the_weights_cannot_be_loaded_nothing_changes(
    api: ApiApp, refusal: AdapterError, status: int
) -> None:
    release_id = await propose(api)
    api.loads.refusal = refusal
    answer = await activate(api, release_id)
    assert (answer.status_code, problem(answer)["error"]) == (status, type(refusal).__name__)
    assert await states(api) == [(2, "candidate"), (1, "active")]


async def test_no_directory_of_the_host_is_named(api: ApiApp, tmp_path: Path) -> None:
    answer = await api.client.post("/v1/releases", json={"adapter": "0" * 32})
    assert answer.status_code == 400
    assert str(problem(answer)["detail"]).startswith(f"there is no adapter in {'0' * 32}: it needs")
    release_id, place = await propose(api), tmp_path / ("a" * 32)
    with every_row() as row:
        for refusal in (
            AdapterError(f"there is no adapter in {place}: it needs files"),
            EngineError(f"http://127.0.0.1:9/v1/models does not see {place} (404)"),
            StorageError(f"the adapter could not be written to {place}: [Errno 28] full: '{place}/weights'"),
        ):
            with row(refusal):
                api.loads.refusal = refusal
                detail = str(problem(await activate(api, release_id))["detail"])
                assert str(tmp_path) not in detail
                assert place.name in detail
                assert ("http://127.0.0.1:9/v1/models" in detail) == ("http" in str(refusal))


async def test_a_rejected_release_is_activated_only_if_allowed_explicitly(api: ApiApp) -> None:
    release_id = await propose(api)
    async with api.sessions.begin() as session:
        await releases.reject(session, release_id, {"reason": "worse"})
    answer = await activate(api, release_id)
    assert answer.status_code == 409
    assert "allow_rejected=true" in str(problem(answer)["detail"])
    assert await states(api) == [(2, "rejected"), (1, "active")]
    assert (await activate(api, release_id, "?allow_rejected=true")).json()["state"] == "active"


async def test_only_an_administrator_of_the_project_activates(api: ApiApp) -> None:
    release_id = await propose(api)
    other = await api.key("admin", project_id=(await api.project("other")).id)
    assert (await activate(api, release_id, headers=await api.key("tasks"))).status_code == 403
    assert (await activate(api, release_id, headers=other)).status_code == 404
    assert (await api.client.get(f"/v1/releases/{release_id}", headers=other)).status_code == 404
    assert (await activate(api, uuid4())).status_code == 404
    assert api.loads.models == []


async def test_a_release_callback_is_called_for_an_activation_in_another_process(
    api: ApiApp, database_url: str
) -> None:
    called = asyncio.Event()
    release_id = await propose(api)
    async with NotificationListener(database_url) as listener:
        listener.on_release(called.set)
        await called.wait()  # callbacks are called once the connection listens
        called.clear()
        await activate(api, release_id)
        await called.wait()
