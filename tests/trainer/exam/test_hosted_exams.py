"""Exams in which a release has a hosted model, over a real endpoint."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.base.values import BASE, hosted
from app.db import tables
from app.db.database import Sessions
from app.projects import store as projects
from app.projects import usage
from app.releases import store as releases
from tests.support.hosted_project import hosted_entry
from tests.support.odd_endpoint import OddEndpoint, said
from tests.support.scripted_engine import block
from tests.support.training_project import ONE_TURN, ProgressRecorder, TrainingProject, on_this_machine
from trainer.run import train

pytestmark = pytest.mark.slow  # whole exams

ANSWER = block("apis.supervisor.complete_task(answer='hello')")


@pytest.fixture
async def endpoint() -> AsyncIterator[tuple[OddEndpoint, str]]:
    endpoint = OddEndpoint(lambda _: said(ANSWER, usage={"prompt_tokens": 50, "completion_tokens": 5}))
    async with endpoint.listening() as url:
        yield endpoint, url


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    """Half of its hundred kinds of tasks are its exam."""
    settings = on_this_machine(tiny, tmp_path, database_url, **ONE_TURN)
    opened = await TrainingProject.open(committed, settings)
    async with committed.begin() as session:
        await projects.change_settings(session, opened.project_id, {"holdout_percent": 50})
    await opened.serve(1.0, 0.0, scenarios=100)
    return opened


async def hosted_release(shop: TrainingProject, url: str, *, active: bool) -> tables.Release:
    entry = await hosted_entry(shop.sessions, shop.project_id, url=url, price_in=3, price_out=15)
    async with shop.sessions.begin() as session:
        release = await releases.propose(session, shop.project_id, hosted(entry.id))
        return await releases.activate(session, release.id) if active else release


async def test_a_hosted_model_is_examined_beside_the_model_of_the_servers(
    shop: TrainingProject, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    release = await hosted_release(shop, url, active=False)
    job = await shop.job(kind="exam", releases="2", gate_scenarios=30)
    result = await train(job, ProgressRecorder())
    local, there = result.evidence["releases"]
    assert (local["model"], there["model"]) == (BASE, release.model)
    assert result.reason.startswith("release 1 solves 0.0 % of 30 scenarios, release 2 solves 100.0 % (+100.0 [")
    assert {request["messages"][0]["role"] for request in asked.requests} == {"system"}
    async with shop.sessions() as session:
        spent = (await usage.of_today(session, shop.project_id)).cost
    assert spent == pytest.approx(len(asked.requests) * (50 * 3 + 5 * 15) / 1e6)


async def test_the_gate_compares_an_adapter_with_a_hosted_model_that_serves(
    shop: TrainingProject, endpoint: tuple[OddEndpoint, str]
) -> None:
    asked, url = endpoint
    await hosted_release(shop, url, active=True)
    job = await shop.job(kind="logged", steps=1, pairs=2, gate_scenarios=30, max_staleness=9)
    result = await train(job, ProgressRecorder())
    [candidate] = await shop.of_run(job)
    assert (candidate.state, result.decision) == (tables.ReleaseState.REJECTED, "rejected")
    assert (candidate.evidence or {})["compared_with"]["number"] == 2
    assert asked.requests
