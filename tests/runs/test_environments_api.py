"""Workers report their environments; the API lists them, and refuses what no worker has before a run is queued."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from click.testing import CliRunner
from sqlalchemy import text, update

from app.base.plugins import EnvironmentInfo, options_schema
from app.cli import main
from app.db import tables
from app.db.database import Sessions
from app.db.queries import from_now
from app.runs import store as runs
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.http_server import served
from trainer.worker.launcher import EnvironmentReport
from trainer.worlds.office.environment import load_environment

OFFICE = EnvironmentInfo("office", "1.0", options_schema(load_environment))
GARDEN = EnvironmentInfo("garden", "0.3", {"type": "object", "properties": {}})
RUN = {"kind": "rollout", "settings": {"steps": 1}}


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def report(sessions: Sessions, worker: str, *environments_of: EnvironmentInfo) -> None:
    async with sessions.begin() as session:
        await runs.report(session, worker, environments_of)


async def installed(sessions: Sessions) -> Sequence[EnvironmentInfo]:
    async with sessions() as session:
        return await runs.installed(session)


async def run(command: list[str]) -> str:
    """The output of `sage` with these arguments."""
    return (await asyncio.to_thread(CliRunner().invoke, main, command)).output


async def age(sessions: Sessions, worker: str, seconds: float) -> None:
    row = tables.WorkerEnvironment
    async with sessions.begin() as session:
        await session.execute(update(row).where(row.worker == worker).values(reported_at=from_now(-seconds)))


async def test_a_report_replaces_what_the_worker_reported_before(committed: Sessions) -> None:
    await report(committed, "a", OFFICE, GARDEN)
    await report(committed, "b", OFFICE)
    assert await installed(committed) == [GARDEN, OFFICE]
    newer = msgspec.structs.replace(OFFICE, version="2.0")
    await report(committed, "a", newer)
    assert await installed(committed) == [OFFICE, newer], "the other worker still has the first version"


async def test_a_worker_that_is_gone_is_ignored_after_minutes_and_forgotten_after_a_day(
    committed: Sessions,
) -> None:
    await report(committed, "old", GARDEN)
    await report(committed, "new", OFFICE)
    await age(committed, "old", 301)
    assert await installed(committed) == [OFFICE]
    await age(committed, "old", 24 * 3600 + 1)
    await report(committed, "new", OFFICE)
    async with committed() as session:
        rows = (await session.execute(text("SELECT worker FROM worker_environments"))).scalars().all()
    assert rows == ["new"]


async def test_any_key_may_list_the_environments(api: ApiApp) -> None:
    await report(api.sessions, "a", OFFICE)
    for scope in ("skills", "tasks", "admin"):
        answer = await api.client.get("/v1/environments", headers=await api.key(scope))
        [shown] = answer.json()
        assert (answer.status_code, shown["name"], shown["version"]) == (200, "office", "1.0")
        assert shown["options"]["properties"]["busy"]["maximum"] == 0.9
    nobody = await api.client.get("/v1/environments", headers={"Authorization": "Bearer guess"})
    assert nobody.status_code == 401


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ("moon", "unknown environment 'moon': the workers have garden, office"),
        ("moon?site=0", "unknown environment 'moon'"),
        ("office?size=3", "office has no option size; it has busy, names, site, wording"),
        ("office?busy=2", "office: busy=2: 2 is greater than the maximum of 0.9"),
        ("garden?site=1", "garden has no option site; it has none"),
    ],
)
async def test_an_environment_or_option_that_no_worker_has_is_refused_before_anything_is_queued(
    api: ApiApp, environment: str, error: str
) -> None:
    await report(api.sessions, "a", OFFICE, GARDEN)
    settings = {"kind": "rollout", "environment": environment}
    for method, path, body in (
        ("POST", "/v1/training-runs", {"settings": settings}),
        ("PUT", "/v1/schedule", {"settings": settings, "every_hours": 1}),
    ):
        answer = await api.client.request(method, path, json=body)
        assert answer.status_code == 400
        assert error in str(problem(answer)["detail"])
    assert (await api.client.get("/v1/training-runs")).json()["runs"] == []


@pytest.mark.parametrize("environment", ["office?site=7&busy=0.4", "garden"])
async def test_an_environment_that_a_worker_has_is_accepted(api: ApiApp, environment: str) -> None:
    await report(api.sessions, "a", OFFICE, GARDEN)
    answer = await api.client.post(
        "/v1/training-runs", json={"settings": {"kind": "rollout", "environment": environment}}
    )
    assert answer.status_code == 202, answer.text


async def test_an_option_that_one_of_two_versions_has_is_accepted(api: ApiApp) -> None:
    await report(api.sessions, "old", msgspec.structs.replace(GARDEN, name="office"))
    await report(api.sessions, "new", OFFICE)
    body = {"settings": {"kind": "rollout", "environment": "office?site=1"}}
    assert (await api.client.post("/v1/training-runs", json=body)).status_code == 202


async def test_before_any_worker_has_reported_the_run_is_accepted_and_the_worker_checks(api: ApiApp) -> None:
    body = {"settings": {"kind": "rollout", "environment": "moon"}}
    assert (await api.client.post("/v1/training-runs", json=body)).status_code == 202


async def test_a_worker_reports_what_is_installed_and_the_command_lists_it(api: ApiApp) -> None:
    key = (await api.key("tasks"))["Authorization"].removeprefix("Bearer ")
    async with served(api) as client:
        command = ["environments", "--url", str(client.base_url), "--key", key]
        assert "no worker has reported its environments yet" in await run(command)
        await EnvironmentReport(api.sessions).send()
        *_, head, crud, exam, gym, office, openenv, practice, strangers = (await run(command)).splitlines()
    assert head.split() == ["environment", "version", "options", "and", "their", "defaults"]
    assert crud.split() == ["crud", "0.1.0", 'held_out="all"']
    assert exam.split() == ["exam", "0.1.0", 'digest=""', 'name="own-work"', 'on="recorded"']
    assert gym.split() == ["gym", "0.1.0", 'held_out="all"']
    assert office.split() == ["office", "0.1.0", "busy=0.0", 'names="fixed"', "site=null", 'wording="fixed"']
    assert openenv.split()[:2] == ["openenv", "0.1.0"]
    assert practice.split() == ["practice", "0.1.0", "api", "(required)", 'paraphraser=""']
    assert strangers.split()[:2] == ["strangers", "0.1.0"]
