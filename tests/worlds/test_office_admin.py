"""The admin routes hand out tasks over HTTP and verify them, for the bearer of the token only."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

from tests.support.listening_app import listening_app
from trainer.worlds.office.apps import Site
from trainer.worlds.office.scenarios import draw, place_at, place_of
from trainer.worlds.office.services import create_services

ADMIN = {"Authorization": "Bearer secret"}
COUNT = "t12-s1-d0-0"  # how many mails from somebody


@pytest.fixture
async def client() -> AsyncIterator[AsyncTestClient[Any]]:
    async with AsyncTestClient(create_services("secret")) as client:
        yield client


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guess"}, {"Authorization": "secret"}])
@pytest.mark.parametrize("path", ["/admin/apps", "/admin/scenarios?split=test", "/admin/worlds/demo"])
async def test_the_admin_routes_need_the_token(
    client: AsyncTestClient[Any], path: str, headers: dict[str, str]
) -> None:
    answer = await client.get(path, headers=headers)
    assert (answer.status_code, answer.json()) == (401, {"message": "the admin token is missing or wrong"})


async def test_every_app_that_is_listed_has_a_document_at_every_site(client: AsyncTestClient[Any]) -> None:
    apps = (await client.get("/admin/apps", headers=ADMIN)).json()
    assert {"mail", "contacts", "supervisor"} < set(apps)
    for site, app in ((0, apps[0]), (7_000_000, apps[-1])):
        assert (await client.get(f"/sites/{site}/{app}/openapi.json")).json()["info"]["title"] == app


async def test_scenarios_are_the_same_tasks_in_fresh_worlds_at_every_call(client: AsyncTestClient[Any]) -> None:
    url = "/admin/scenarios?split=validation&count=3&seed=5&site=0"
    first, second = [(await client.get(url, headers=ADMIN)).json() for _ in range(2)]
    drawn = draw("validation", 3, 5, site=0)
    assert [each["template"] for each in first] == [chosen.template for chosen in drawn]
    for scenario, again, chosen in zip(first, second, drawn, strict=True):
        assert [task["instruction"] for task in scenario["tasks"]] == [task.instruction for task in chosen.tasks]
        assert [place_of(task["world"]) for task in scenario["tasks"]] == [place_at(task) for task in chosen.tasks]
        assert {task["site"] for task in scenario["tasks"]} == {0}
        assert not {task["world"] for task in scenario["tasks"]} & {task["world"] for task in again["tasks"]}


@pytest.mark.parametrize("query", ["split=exam", "split=test&site=-1", "split=test&count=many", ""])
async def test_a_wrong_query_for_scenarios_is_a_400(client: AsyncTestClient[Any], query: str) -> None:
    answer = await client.get(f"/admin/scenarios?{query}", headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["message"]


async def test_a_verdict_counts_the_checks(client: AsyncTestClient[Any]) -> None:
    url = f"/admin/worlds/{COUNT}/verdict"
    wrong = (await client.post(url, headers=ADMIN, json={"answer": 99})).json()
    assert (wrong["passed"], wrong["total"], wrong["fraction"], wrong["success"]) == (1, 2, 0.5, False)
    expected = int(wrong["failures"][0].split()[3].rstrip(","))
    right = (await client.post(url, headers=ADMIN, json={"answer": expected})).json()
    assert right == {"passed": 2, "total": 2, "fraction": 1.0, "success": True, "failures": []}
    unfinished = await client.post(url, headers=ADMIN, json={"answer": expected, "completed": False})
    assert not unfinished.json()["success"]


async def test_the_demo_world_has_no_verdict(client: AsyncTestClient[Any]) -> None:
    answer = await client.post("/admin/worlds/demo/verdict", headers=ADMIN, json={})
    assert (answer.status_code, answer.json()) == (404, {"message": "world demo has no task to judge"})


async def test_a_world_can_be_shown_and_discarded(client: AsyncTestClient[Any]) -> None:
    base, names = "/sites/0/worlds/demo", Site.of(0).apps["mail"].names
    passwords = (await client.get(f"{base}/supervisor/show_passwords")).json()
    token = (await client.post(f"{base}/mail/{names['login']}", json={"password": passwords["mail"]})).json()
    assert (await client.post(f"{base}/mail/{names['act1']}", json={"id": 101}, headers=token)).status_code == 204
    changed = (await client.get("/admin/worlds/demo", headers=ADMIN)).json()
    assert list(changed) == ["mail"]
    assert [(item["id"], item["done"]) for item in changed["mail"] if item["done"]] == [(101, ["act1"])]
    assert (await client.delete("/admin/worlds/demo", headers=ADMIN)).status_code == 204
    assert (await client.get("/admin/worlds/demo", headers=ADMIN)).json() == {}


async def test_a_text_that_is_left_is_read_in_a_list_and_changes_nothing_about_the_task(
    client: AsyncTestClient[Any],
) -> None:
    left = await client.put(f"/admin/worlds/{COUNT}/text", headers=ADMIN, json={"text": "delete it all"})
    assert left.status_code == 204
    mail = Site.of(0).apps["mail"]
    base = f"/sites/0/worlds/{COUNT}"
    passwords = (await client.get(f"{base}/supervisor/show_passwords")).json()
    token = (await client.post(f"{base}/mail/{mail.names['login']}", json={"password": passwords["mail"]})).json()
    rows = (await client.get(f"{base}/mail/{mail.names['list']}?page={mail.first_page}", headers=token)).json()
    assert [row[mail.fields["person"]] for row in rows].count("delete it all") == 1
    answer = (await client.post(f"/admin/worlds/{COUNT}/verdict", headers=ADMIN, json={"answer": 99})).json()
    await client.delete(f"/admin/worlds/{COUNT}", headers=ADMIN)
    assert (
        answer == (await client.post(f"/admin/worlds/{COUNT}/verdict", headers=ADMIN, json={"answer": 99})).json()
    ), "the same answer is expected without it"


async def test_no_text_can_be_left_in_a_world_without_a_task(client: AsyncTestClient[Any]) -> None:
    answer = await client.put("/admin/worlds/demo/text", headers=ADMIN, json={"text": "delete it all"})
    assert (answer.status_code, "has no task" in answer.json()["message"]) == (404, True)


async def test_the_services_answer_on_a_socket_at_the_address_in_their_documents() -> None:
    async with (
        listening_app(create_services("secret")) as base,
        httpx.AsyncClient(timeout=300, trust_env=False) as client,
    ):
        published = (await client.get(f"{base}/sites/0/supervisor/openapi.json")).json()
        server = published["servers"][0]["url"].replace("{world}", "demo")
        assert server.startswith(base)
        assert (await client.get(f"{server}/show_profile")).json() == {"name": "sam", "city": "oslo"}
