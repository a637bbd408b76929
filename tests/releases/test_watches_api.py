"""The watch of a release over HTTP and on the command line."""

from collections.abc import AsyncIterator

import pytest

from app.db.database import Sessions
from app.releases import store as releases
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.canary_project import Project
from tests.support.http_server import served
from tests.support.sage_command import SageCommand
from tests.support.watched_project import WatchedProject, promote, scored


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@pytest.fixture
async def watched(api: ApiApp) -> WatchedProject:
    async with api.sessions.begin() as session:
        candidate = await releases.propose(session, api.demo.id, "f00d")
    project = Project(api.sessions, api.demo.id, candidate.id, api.loads)
    await scored(project, (await project.release(1)).id, 7, 3)
    await scored(project, (await project.release(1)).id, 1, 0, 4, "vanished")
    return await promote(project)


async def test_a_watch_shows_its_metrics_and_what_it_did_not_count(api: ApiApp, watched: WatchedProject) -> None:
    await watched.served(5, 5)
    path = f"/v1/releases/{watched.watched}"
    shown = (await api.client.get(path)).json()
    assert (shown["watched"], shown["evidence"]["watch"]["state"]) == (True, "watching")
    metrics = (await api.client.get(f"{path}/watch")).json()
    assert (metrics["number"], metrics["action"], metrics["baseline"]["number"]) == (2, "continue", 1)
    assert metrics["metrics"]["reward"]["difference"]["mean"] == pytest.approx(-0.2)
    assert metrics["not_counted"]["vanished"] == {"vanished": 4}
    [scenario] = metrics["scenarios"]
    assert (scenario["scenario"], scenario["reward"]) == ("mail", {"before": 0.7, "now": 0.5})


async def test_a_release_that_is_not_watched_has_no_metrics(api: ApiApp, watched: WatchedProject) -> None:
    answer = await api.client.get(f"/v1/releases/{watched.before}/watch")
    assert (answer.status_code, problem(answer)["detail"]) == (
        409,
        "release 1 is retired, and is not watched: see its evidence",
    )
    other = await api.key("tasks", project_id=(await api.project("other")).id)
    path = f"/v1/releases/{watched.watched}/watch"
    assert (await api.client.get(path, headers=other)).status_code == 404


async def test_a_person_who_rolls_back_over_rest_ends_it(api: ApiApp, watched: WatchedProject) -> None:
    assert (await api.client.post(f"/v1/releases/{watched.before}/activate")).status_code == 200
    shown = (await api.client.get(f"/v1/releases/{watched.watched}")).json()
    assert (shown["watched"], shown["evidence"]["watch"]["state"]) == (False, "ended")


async def test_the_command_line_shows_it(api: ApiApp, watched: WatchedProject) -> None:
    await watched.served(5, 5)
    async with served(api) as client:
        shell = SageCommand(api, str(client.base_url))
        listed = await shell.run("releases")
        shown = await shell.run("releases", "2")
    assert "active, watched" in listed.out, listed.err
    assert "watch action" in shown.out, shown.err
    assert "watch not_counted vanished vanished" in shown.out
