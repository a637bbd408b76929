"""The settings of a project: merged, validated, stored without defaults, and audited."""

from collections.abc import AsyncIterator

import pytest

from app.db.database import Sessions
from app.projects.settings import ProjectSettings, changed, stored
from tests.support.api_app import ApiApp, open_api_app, problem


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


def test_null_restores_the_default_and_only_differences_are_stored() -> None:
    settings = changed(ProjectSettings(), {"skills": "review"})
    assert (settings.skills, stored(settings)) == ("review", {"skills": "review"})
    assert stored(changed(settings, {"skills": None})) == {}


async def test_changed_settings_are_shown_and_audited_with_those_before(api: ApiApp) -> None:
    headers = await api.key("admin")
    await api.project("billing")
    answer = await api.client.patch("/v1/projects/billing", json={"settings": {"skills": "open"}}, headers=headers)
    assert answer.json()["settings"]["skills"] == "open"
    shown = await api.client.get("/v1/projects/billing", headers=headers)
    assert shown.json()["settings"]["skills"] == "open"
    audit = await api.client.get("/v1/audit?project=billing", headers=headers)
    [entry] = audit.json()["entries"]
    assert entry["action"] == "settings changed"
    assert (entry["detail"]["before"]["skills"], entry["detail"]["after"]["skills"]) == ("evidence", "open")


@pytest.mark.parametrize(
    "settings",
    [
        {"skills": "anything"},
        {"colour": "red"},
        {"skills": {"a": 1}},
        {"keep_tasks": 0},
        {"keep_events": -1},
        {"keep_trajectories": 36_501},
        {"keep_tasks": 1.5},
        {"keep_events": "7"},
        {"keep_tasks": True},
    ],
    ids=str,
)
async def test_invalid_settings_are_refused_by_name_and_change_nothing(
    api: ApiApp, settings: dict[str, object]
) -> None:
    headers = await api.key("admin")
    await api.project("billing")
    answer = await api.client.patch("/v1/projects/billing", json={"settings": settings}, headers=headers)
    assert answer.status_code == 400
    assert next(iter(settings)) in str(problem(answer)["detail"])
    shown = await api.client.get("/v1/projects/billing", headers=headers)
    assert shown.json()["settings"]["skills"] == "evidence"


async def test_a_task_keeps_the_principal_it_was_submitted_for(api: ApiApp) -> None:
    headers = await api.key("tasks")
    body = {"instruction": "count the mails", "principal": "iris@example.org"}
    answer = await api.client.post("/v1/tasks", json=body, headers=headers)
    shown = await api.client.get(f"/v1/tasks/{answer.json()['id']}", headers=headers)
    assert shown.json()["principal"] == "iris@example.org"
