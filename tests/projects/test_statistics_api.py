"""Statistics of ended tasks over time."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from app.db import tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.projects import statistics
from app.projects.statistics import TimeBucket
from app.releases import store as releases
from app.skills import store as skills
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.rows import new_skill, offer_of, record_offers

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)  # a Wednesday
WINDOW = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-06T00:00:00Z"}


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def ended(api: ApiApp, days: int, score: float | None, **columns: Any) -> UUID:
    """A task that took ten seconds, and ended so many days before noon of the 4th."""
    task_id = await api.submit(scenario=columns.pop("scenario", None))
    end = NOON - timedelta(days=days)
    known = {"state": TaskState.DONE, "turns": 2, "generated_tokens": 100} | columns
    async with api.sessions.begin() as session:
        task = await session.get_one(tables.Task, task_id)
        task.finished_at, task.started_at, task.score = end, end - timedelta(seconds=10), score
        for name, value in known.items():
            setattr(task, name, value)
    return task_id


async def stats(api: ApiApp, **query: str) -> dict[str, Any]:
    answer = await api.client.get("/v1/stats", params={**WINDOW, **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_tasks_are_counted_by_scenario_and_day(api: ApiApp) -> None:
    await ended(api, 0, 1.0, scenario="pay", turns=4)
    await ended(api, 0, 0.0, scenario="pay")
    await ended(api, 0, None, scenario="pay", state=TaskState.FAILED)
    await ended(api, 1, 0.5, scenario="pay")
    await ended(api, 0, 1.0)
    await ended(api, 0, 1.0, scenario="pay", state=TaskState.CANCELLED)
    await ended(api, 9, 1.0, scenario="pay")
    found = await stats(api, by="scenario")
    today, other, before = found["rows"]
    assert today == {
        "key": "pay",
        "name": "pay",
        "start": "2026-03-04T00:00:00Z",
        "tasks": 3,
        "failed": 1,
        "scored": 2,
        "succeeded": 1,
        "success": 0.5,
        "turns": pytest.approx(8 / 3),
        "generated_tokens": 100.0,
        "seconds": 10.0,
    }
    assert (other["key"], other["tasks"], other["success"]) == (None, 1, 1.0)
    assert (before["start"], before["succeeded"]) == ("2026-03-03T00:00:00Z", 1)
    assert (found["project"], found["counted_from"]) == ("demo", None)


async def test_tasks_are_counted_by_release_with_its_number(api: ApiApp) -> None:
    async with api.sessions() as session:
        serving = await releases.active(session, api.demo.id)
    await ended(api, 0, 1.0, release_id=serving.id)
    await ended(api, 2, None)
    rows = (await stats(api, by="release", bucket="week"))["rows"]
    assert [(row["name"], row["key"], row["start"], row["success"]) for row in rows] == [
        ("1", str(serving.id), "2026-03-02T00:00:00Z", 1.0),
        (None, None, "2026-03-02T00:00:00Z", None),
    ]


async def test_tasks_are_counted_by_the_skills_that_they_used(api: ApiApp) -> None:
    used, offered = await ended(api, 0, 1.0), await ended(api, 0, 0.0)
    async with api.sessions.begin() as session:
        skill = await skills.add(session, api.demo.id, new_skill("greet"))
        for task_id in (used, offered):
            await record_offers(session, task_id, [offer_of(skill)])
        (await session.get_one(tables.SkillOffer, (used, skill.id))).returned = 1
    [row] = (await stats(api, by="skill"))["rows"]
    assert (row["name"], row["key"], row["tasks"], row["success"]) == ("greet 1", str(skill.id), 1, 1.0)


async def test_all_tasks_are_counted_without_a_grouping(api: ApiApp) -> None:
    await ended(api, 0, 1.0, scenario="pay")
    await ended(api, 0, 0.0)
    [row] = (await stats(api, bucket="hour"))["rows"]
    assert (row["key"], row["start"], row["tasks"], row["success"]) == (None, "2026-03-04T12:00:00Z", 2, 0.5)


async def test_only_the_scenarios_with_the_most_tasks_are_shown(api: ApiApp) -> None:
    for days, scenario in ((0, "rare"), (0, "common"), (1, "common")):
        await ended(api, days, 1.0, scenario=scenario)
    rows = (await stats(api, by="scenario", limit="1"))["rows"]
    assert [(row["key"], row["tasks"]) for row in rows] == [("common", 1), ("common", 1)]


async def test_of_too_many_tasks_the_newest_are_counted(api: ApiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_MOST_TASKS", 2)
    for days in range(3):
        await ended(api, days, 1.0)
    found = await stats(api)
    assert [row["start"][:10] for row in found["rows"]] == ["2026-03-04", "2026-03-03"]
    assert found["counted_from"] == "2026-03-03T12:00:00Z"


async def test_another_project_is_not_counted(api: ApiApp) -> None:
    await ended(api, 0, 1.0)
    other = await api.project("other")
    key = await api.key("tasks", project_id=other.id)
    answer = await api.client.get("/v1/stats", params=WINDOW, headers=key)
    assert (answer.status_code, answer.json()["rows"]) == (200, [])
    assert (await api.client.get("/v1/stats?project=demo", headers=key)).status_code == 404


@pytest.mark.parametrize(
    "query",
    [
        {"from": "2026-03-04T00:00:00Z", "to": "2026-03-04T00:00:00Z"},
        {"from": "2020-01-01T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
        {"to": "0001-01-01T00:00:00Z"},
    ],
)
async def test_a_window_that_is_empty_or_too_long_is_refused(api: ApiApp, query: dict[str, str]) -> None:
    answer = await api.client.get("/v1/stats", params={"bucket": TimeBucket.DAY.value, **query})
    assert problem(answer)["status"] == 400


async def test_without_a_window_the_last_thirty_days_are_shown(api: ApiApp) -> None:
    found = (await api.client.get("/v1/stats")).json()
    since, until = (datetime.fromisoformat(found[name]) for name in ("since", "until"))
    assert until - since == timedelta(days=30)
    assert abs((datetime.now(UTC) - until).total_seconds()) < 60
