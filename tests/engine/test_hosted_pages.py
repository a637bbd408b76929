"""What people see of a hosted policy and its cost: the console and REST."""

from collections.abc import AsyncIterator

import pytest

from app.base.values import hosted
from app.db.database import Sessions
from app.db.tables import Task, TaskState
from app.projects import usage
from app.releases import store as releases
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app
from tests.support.console_pages import read_page
from tests.support.every_row import every_row
from tests.support.hosted_project import hosted_entry


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def ended_task(api: ApiApp, cost: float | None) -> Task:
    await api.submit()
    outcome = queue.TaskOutcome(state=TaskState.DONE, turns=1, prompt_tokens=1200, cost=cost)
    async with api.sessions.begin() as session:
        task = await queue.claim(session, "me", 30)
        assert task is not None
        assert await queue.finish(session, task.id, "me", outcome)
    return task


async def test_pages_and_views_name_the_hosted_model_and_say_what_it_cost(api: ApiApp) -> None:
    entry = await hosted_entry(api.sessions, api.demo.id, "claude-sonnet-4")
    free = await ended_task(api, None)
    async with api.sessions.begin() as session:
        release = await releases.propose(session, api.demo.id, hosted(entry.id))
        await releases.activate(session, release.id)
    paid = await ended_task(api, 0.0123)
    async with api.sessions.begin() as session:
        await usage.add(session, api.demo.id, 1, cost=0.5, other_cost=0.5)  # as of a trial
    pages = {
        f"/console/tasks/{paid.id}": ("claude-sonnet-4", "<dt>Cost</dt>", "0.012"),
        f"/console/releases/{release.id}": ("Hosted model", "claude-sonnet-4"),
        "/console/tasks?project=demo": ("Cost", "cost 0.012 in all, without those"),
        "/console/usage?project=demo": (
            "Cost of hosted models today, 0.5 of it for no task",
            "Cost by day",
            "0.51",
        ),
        "/console?project=demo": ("Hosted models cost", "0.51"),
    }
    with every_row() as row:
        for address, texts in pages.items():
            with row(address):
                shown = await read_page(api, address, "tasks", "admin")
                assert [text for text in texts if text not in shown] == []
                assert hosted(entry.id) not in shown
    view = (await api.client.get(f"/v1/tasks/{paid.id}")).json()
    assert (view["release"]["model"], view["cost"], view["prompt_tokens"]) == ("claude-sonnet-4", 0.0123, 1200)
    assert "<dt>Cost</dt>" not in await read_page(api, f"/console/tasks/{free.id}", "tasks")
    today = (await api.client.get("/v1/projects/demo/usage")).json()["today"]
    assert (today["cost"], today["other_cost"]) == (pytest.approx(0.5123), 0.5)
    listed = (await api.client.get("/v1/tasks")).json()["tasks"]
    assert [each["cost"] for each in listed] == [0.0123, None]
