"""Finding tasks: by words, skill, release, score and what they repeat."""

from typing import Any

import pytest
from sqlalchemy import func, select

from app.db import tables
from app.db.tables import TaskState
from app.releases import store as releases
from app.skills import store as skills
from tests.support.api_app import ApiApp, problem
from tests.support.rows import new_skill, offer_of, record_offers


async def found(api: ApiApp, **query: Any) -> list[str]:
    """The instructions of the tasks that are listed."""
    answer = await api.client.get("/v1/tasks", params=query)
    assert answer.status_code == 200, answer.text
    return [task["instruction"] for task in answer.json()["tasks"]]


@pytest.mark.parametrize(
    ("words", "instructions"),
    [
        ("mails", ["send the mails to Iris", "archive the mails from omar"]),
        ("MAILS omar", ["archive the mails from omar"]),
        ('"mails from"', ["archive the mails from omar"]),
        ("mails -omar", ["send the mails to Iris"]),
        ("omar or pay", ["pay the bill", "archive the mails from omar"]),
        ("mail", []),
        ("'); DROP TABLE tasks; --", []),
        ("!&|<->:*", []),
    ],
)
async def test_tasks_are_found_by_the_words_of_their_instruction(
    api: ApiApp, words: str, instructions: list[str]
) -> None:
    for instruction in ("archive the mails from omar", "send the mails to Iris", "pay the bill"):
        await api.submit(instruction)
    assert await found(api, q=words) == instructions


async def test_the_pages_of_a_search_have_each_task_once_while_others_arrive(api: ApiApp) -> None:
    for number in range(5):
        await api.submit(f"pay bill {number}")
        await api.submit(f"tidy up {number}")
    first = (await api.client.get("/v1/tasks", params={"q": "pay", "limit": 3})).json()
    await api.submit("pay another bill")
    rest = (await api.client.get("/v1/tasks", params={"q": "pay", "cursor": first["next_cursor"]})).json()
    listed = [task["instruction"] for task in (*first["tasks"], *rest["tasks"])]
    assert listed == [f"pay bill {number}" for number in reversed(range(5))]
    assert rest["next_cursor"] is None


async def test_a_search_is_combined_with_filters_and_times(api: ApiApp) -> None:
    await api.submit("pay the rent", scenario="money")
    [early] = (await api.client.get("/v1/tasks")).json()["tasks"]
    await api.submit("pay the bill", scenario="money")
    await api.submit("pay attention")
    assert await found(api, q="pay", scenario="money") == ["pay the bill", "pay the rent"]
    assert await found(api, q="pay", created_before=early["created_at"]) == []
    assert await found(api, q="pay", state="done") == []


async def test_a_key_of_a_project_finds_only_its_own_tasks(api: ApiApp) -> None:
    other = await api.project("other")
    await api.submit("pay the bill", project="demo")
    key = await api.key("tasks", project_id=other.id)
    answer = await api.client.get("/v1/tasks", params={"q": "pay"}, headers=key)
    assert answer.json()["tasks"] == []


async def test_tasks_are_found_by_skill_release_and_score(api: ApiApp) -> None:
    ids = [await api.submit(f"task {number}") for number in range(4)]
    async with api.sessions.begin() as session:
        serving = await releases.active(session, api.demo.id)
        skill = await skills.add(session, api.demo.id, new_skill())
        for number, task_id in enumerate(ids):
            task = await session.get_one(tables.Task, task_id)
            task.state, task.score = TaskState.DONE, number / 4
            task.release_id = serving.id if number % 2 else None
        await record_offers(session, ids[2], [offer_of(skill)])
    assert await found(api, skill_id=str(skill.id)) == ["task 2"]
    assert await found(api, release_id=str(serving.id)) == ["task 3", "task 1"]
    assert await found(api, max_score=0.25) == ["task 1", "task 0"]
    assert await found(api, min_score=0.25, max_score=0.5) == ["task 2", "task 1"]


async def test_the_words_of_a_task_are_erased_with_it(api: ApiApp) -> None:
    task_id = await api.submit("pay the bill of Omar")
    await api.client.post(f"/v1/tasks/{task_id}/cancel")
    assert (await api.client.delete(f"/v1/tasks/{task_id}")).status_code == 200
    async with api.sessions() as session:
        assert await session.scalar(select(func.count()).select_from(tables.TaskWords)) == 0


async def test_an_empty_search_is_refused(api: ApiApp) -> None:
    answer = await api.client.get("/v1/tasks", params={"q": ""})
    assert problem(answer)["field"] == "q"
