"""The routes for the schedule of a project."""

from collections.abc import AsyncIterator

import pytest

from app.db.database import Sessions
from app.runs import schedule as schedules
from app.runs.pages import ScheduleFields
from app.web.forms import entered_values, parse_form
from tests.support.api_app import ApiApp, open_api_app, problem

PATH = "/v1/schedule"


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def test_a_schedule_is_set_shown_changed_and_deleted(api: ApiApp) -> None:
    assert problem(await api.client.get(PATH))["status"] == 404
    body = {"every_hours": 6, "settings": {"kind": "logged", "steps": 5}}
    put = await api.client.put(f"{PATH}?project=demo", json=body)
    assert put.status_code == 200
    assert (put.json()["every_hours"], put.json()["settings"]["steps"], put.json()["enabled"]) == (6, 5, True)
    assert put.json()["next_run_at"]
    assert (put.json()["scored_tasks"], put.json()["waits_for_release"]) == (0, None)
    assert (put.json()["scores_per_week"], len(put.json()["problems"])) == (0, 1)
    changed = await api.client.put(PATH, json={"every_scored_tasks": 300, "enabled": False})
    assert changed.json() == (await api.client.get(PATH)).json()
    assert (changed.json()["every_hours"], changed.json()["every_scored_tasks"]) == (None, 300)
    assert (await api.client.delete(PATH)).status_code == 204
    assert (await api.client.delete(PATH)).status_code == 404


async def test_a_due_schedule_queues_a_run_with_its_settings(api: ApiApp) -> None:
    await api.client.put(PATH, json={"every_hours": 0.0003, "settings": {"steps": 7}})
    async with api.sessions.begin() as session:
        schedule = await schedules.get(session, api.demo.id)
        schedule.next_at = schedule.created_at
    async with api.sessions.begin() as session:
        [run_id] = await schedules.tick(session)
    run = (await api.client.get(f"/v1/training-runs/{run_id}")).json()
    assert (run["settings"]["steps"], run["schedule_id"]) == (7, str(schedule.id))
    assert (await api.client.get(PATH)).json()["last_run_at"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "every_hours"),
        ({"every_hours": 0}, "every_hours"),
        ({"every_scored_tasks": -1}, "every_scored_tasks"),
        ({"every_hours": 1, "settings": {"stepz": 1}}, "stepz"),
        ({"every_hours": 1, "settings": {"kind": "rollout"}}, "needs the setting environment"),
        ({"every_hours": 1, "settings": {"gate_scenarios": 5}}, "gate_scenarios"),
        ({"every_hours": 1, "often": True}, "often"),
    ],
)
async def test_an_invalid_schedule_is_refused_with_the_name_of_the_field(
    api: ApiApp, body: dict[str, object], named: str
) -> None:
    answer = await api.client.put(PATH, json=body)
    assert answer.status_code == 400
    assert named in str(problem(answer)["detail"])
    assert (await api.client.get(PATH)).status_code == 404


async def test_only_an_administrator_of_the_project_sees_or_changes_it(api: ApiApp) -> None:
    await api.client.put(PATH, json={"every_hours": 6})
    other = await api.key("admin", project_id=(await api.project("other")).id)
    for method in ("GET", "DELETE"):
        answer = await api.client.request(method, f"{PATH}?project=demo", headers=other)
        assert answer.status_code == 404
    assert (await api.client.get(f"{PATH}?project=demo", headers=await api.key("tasks"))).status_code == 403


def test_the_form_shows_large_numbers_as_they_are_entered() -> None:
    stored = ScheduleFields(every_hours=24.0, every_scored_tasks=2_000_000)
    shown = entered_values(stored)
    assert shown == {"every_hours": "24", "every_scored_tasks": "2000000", "enabled": "true"}
    assert parse_form(shown, ScheduleFields).value == stored
