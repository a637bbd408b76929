"""Authentication and authorization: keys, scopes and projects."""

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app, problem


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "Bearer sage_unknown", "Bearer \xff"])
async def test_without_a_valid_key_a_request_is_refused_before_its_body_is_read(api: ApiApp, header: str) -> None:
    headers = {b"Authorization": header.encode("latin-1")}
    answer = await api.client.post("/v1/tasks", json={"nonsense": 1}, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert problem(answer)["error"] == "UnauthorizedError"


@pytest.mark.parametrize(
    ("scope", "method", "path"),
    [
        ("skills", "GET", "/v1/tasks"),
        ("skills", "POST", "/v1/feedback"),
        ("tasks", "GET", "/v1/skills"),
        ("tasks", "DELETE", f"/v1/skills/{UUID(int=1)}"),
        ("tasks", "POST", "/v1/apis"),
        ("tasks", "DELETE", "/v1/apis/mail"),
        ("tasks", "POST", "/v1/projects"),
        ("tasks", "DELETE", "/v1/projects/demo"),
        ("tasks", "GET", "/v1/keys"),
        ("skills", "POST", "/v1/keys"),
    ],
)
async def test_a_key_without_the_scope_is_refused_with_its_name(
    api: ApiApp, scope: str, method: str, path: str
) -> None:
    answer = await api.client.request(method, path, headers=await api.key(scope), json={})
    assert answer.status_code == 403
    assert "scope" in str(problem(answer)["detail"])


async def test_a_key_of_one_project_sees_nothing_of_another(api: ApiApp) -> None:
    task_id = await api.submit()
    other = await api.project("other")
    headers = await api.key("admin", project_id=other.id)
    for path in (f"/v1/tasks/{task_id}", f"/v1/tasks/{task_id}/events", f"/v1/tasks/{task_id}/trajectory"):
        assert (await api.client.get(path, headers=headers)).status_code == 404
    for path in (
        "/v1/projects/demo",
        "/v1/tasks?project=demo",
        "/v1/apis?project=demo",
        "/v1/releases?project=demo",
    ):
        assert (await api.client.get(path, headers=headers)).status_code == 404
    score = {"task_id": str(task_id), "score": 1}
    assert (await api.client.post("/v1/feedback", json=score, headers=headers)).status_code == 404
    assert (await api.client.post(f"/v1/tasks/{task_id}/cancel", headers=headers)).status_code == 404
    assert (await api.client.delete("/v1/projects/demo", headers=headers)).status_code == 404
    assert (await api.client.get("/v1/tasks", headers=headers)).json()["tasks"] == []
    assert [each["name"] for each in (await api.client.get("/v1/projects", headers=headers)).json()] == ["other"]


async def test_a_task_without_a_project_belongs_to_the_project_of_the_key(api: ApiApp) -> None:
    other = await api.project("other")
    headers = await api.key("tasks", project_id=other.id)
    made = (await api.client.post("/v1/tasks", json={"instruction": "ok"}, headers=headers)).json()
    shown = (await api.client.get(f"/v1/tasks/{made['id']}", headers=headers)).json()
    assert shown["project"] == "other"


async def test_a_secret_is_shown_once_and_stops_working_when_revoked(api: ApiApp) -> None:
    made = await api.client.post("/v1/keys", json={"name": "ci", "scopes": ["tasks"], "project": "demo"})
    assert made.status_code == 201
    key = made.json()
    headers = {"Authorization": f"Bearer {key['secret']}"}
    assert (await api.client.get("/v1/tasks", headers=headers)).status_code == 200

    listed = await api.client.get("/v1/keys")
    assert key["secret"] not in listed.text
    assert [(each["name"], each["project"]) for each in listed.json()] == [("test admin", None), ("ci", "demo")]

    assert (await api.client.delete(f"/v1/keys/{key['id']}")).status_code == 204
    assert (await api.client.get("/v1/tasks", headers=headers)).status_code == 401
    assert (await api.client.delete(f"/v1/keys/{uuid4()}")).status_code == 404


async def test_an_administrator_of_a_project_creates_keys_of_that_project_only(api: ApiApp) -> None:
    other = await api.project("other")
    headers = await api.key("admin", project_id=other.id)
    made = await api.client.post("/v1/keys", json={"name": "k", "scopes": ["tasks"]}, headers=headers)
    assert made.json()["project"] == "other"
    body = {"name": "k", "scopes": ["admin"], "project": "demo"}
    assert (await api.client.post("/v1/keys", json=body, headers=headers)).status_code == 404
    assert all(each["project"] == "other" for each in (await api.client.get("/v1/keys", headers=headers)).json())
    assert (await api.client.post("/v1/projects", json={"name": "third"}, headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "body",
    [
        {"name": "k", "scopes": []},
        {"name": "k", "scopes": ["everything"]},
        {"name": "", "scopes": ["tasks"]},
        {"scopes": ["tasks"]},
        {"name": "k", "scopes": ["tasks"], "secret": "mine"},
    ],
)
async def test_an_invalid_key_request_is_refused(api: ApiApp, body: object) -> None:
    answer = await api.client.post("/v1/keys", json=body)
    assert answer.status_code == 400
    problem(answer)


async def test_a_project_starts_with_release_one_and_is_deleted_with_its_data(api: ApiApp) -> None:
    assert (await api.client.post("/v1/projects", json={"name": "shop"})).status_code == 201
    assert (await api.client.post("/v1/projects", json={"name": "shop"})).status_code == 409
    assert problem(await api.client.post("/v1/projects", json={"name": "a b"}))["field"] == "name"
    releases = (await api.client.get("/v1/releases?project=shop")).json()
    assert [(each["number"], each["state"], each["model"]) for each in releases] == [(1, "active", "base")]

    task_id = await api.submit(project="shop")
    assert (await api.client.delete("/v1/projects/shop")).status_code == 204
    assert (await api.client.get("/v1/projects/shop")).status_code == 404
    assert (await api.client.get(f"/v1/tasks/{task_id}")).status_code == 404
