"""Releases over HTTP: what serves, and bringing another one to serve."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.api.notifications import EventFeed
from app.db import releases, runs
from app.db.database import Sessions
from app.errors import AdapterError, EngineError
from app.run_settings import RunSettings
from tests.edge import Edge, open_edge, problem


@pytest.fixture
async def edge(committed: Sessions, database_url: str) -> AsyncIterator[Edge]:
    async with open_edge(committed, database_url) as opened:
        yield opened


async def propose(edge: Edge, model: str = "a" * 32) -> UUID:
    async with edge.sessions.begin() as session:
        run = await runs.create(session, edge.demo.id, RunSettings())
        return (await releases.propose(session, edge.demo.id, model, run.id)).id


async def activate(edge: Edge, release_id: UUID, query: str = "", **more: Any) -> Any:
    return await edge.client.post(f"/v1/releases/{release_id}/activate{query}", **more)


async def states(edge: Edge) -> list[tuple[int, str]]:
    listed = (await edge.client.get("/v1/releases")).json()
    return [(each["number"], each["state"]) for each in listed]


async def test_a_release_shows_its_run_its_evidence_and_since_when_it_serves(edge: Edge) -> None:
    release_id = await propose(edge)
    async with edge.sessions.begin() as session:
        await releases.note(session, release_id, {"sgc": 0.9})
    found = (await edge.client.get(f"/v1/releases/{release_id}")).json()
    assert (found["number"], found["state"], found["evidence"]) == (2, "candidate", {"sgc": 0.9})
    run = (await edge.client.get(f"/v1/training-runs/{found['training_run_id']}")).json()
    assert run["kind"] == "logged"
    assert found["activated_at"] is None
    assert (await activate(edge, release_id)).json()["activated_at"]


async def test_activating_loads_the_weights_retires_what_served_and_an_older_one_rolls_back(edge: Edge) -> None:
    release_id = await propose(edge)
    answer = await activate(edge, release_id)
    assert (answer.status_code, answer.json()["state"]) == (200, "active")
    assert edge.loads.models == ["a" * 32]
    assert await states(edge) == [(2, "active"), (1, "retired")]
    first = (await edge.client.get("/v1/releases")).json()[-1]["id"]
    assert (await activate(edge, first)).json()["state"] == "active"
    assert await states(edge) == [(2, "retired"), (1, "active")]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(AdapterError("there is no adapter in ..."), 409), (EngineError("the engine is unreachable"), 503)],
)
async def test_where_the_weights_cannot_be_loaded_nothing_changes(
    edge: Edge, refusal: AdapterError, status: int
) -> None:
    release_id = await propose(edge)
    edge.loads.refusal = refusal
    answer = await activate(edge, release_id)
    assert (answer.status_code, problem(answer)["error"]) == (status, type(refusal).__name__)
    assert await states(edge) == [(2, "candidate"), (1, "active")]


async def test_a_rejected_release_serves_only_if_someone_insists(edge: Edge) -> None:
    release_id = await propose(edge)
    async with edge.sessions.begin() as session:
        await releases.reject(session, release_id, {"reason": "worse"})
    answer = await activate(edge, release_id)
    assert answer.status_code == 409
    assert "rejected_too=true" in str(problem(answer)["detail"])
    assert await states(edge) == [(2, "rejected"), (1, "active")]
    assert (await activate(edge, release_id, "?rejected_too=true")).json()["state"] == "active"


async def test_only_an_administrator_of_the_project_activates(edge: Edge) -> None:
    release_id = await propose(edge)
    other = await edge.key("admin", project_id=(await edge.project("other")).id)
    assert (await activate(edge, release_id, headers=await edge.key("tasks"))).status_code == 403
    assert (await activate(edge, release_id, headers=other)).status_code == 404
    assert (await edge.client.get(f"/v1/releases/{release_id}", headers=other)).status_code == 404
    assert (await activate(edge, uuid4())).status_code == 404
    assert edge.loads.models == []


async def test_who_loads_adapters_hears_of_an_activation_in_another_process(edge: Edge, database_url: str) -> None:
    heard = asyncio.Event()
    release_id = await propose(edge)
    async with EventFeed(database_url) as feed, asyncio.timeout(10):
        feed.call_at_release(heard.set)
        await heard.wait()  # it looks once when it begins to listen
        heard.clear()
        await activate(edge, release_id)
        await heard.wait()
