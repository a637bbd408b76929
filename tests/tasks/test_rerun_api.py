"""Running a task again: a new task like an earlier one, with changes."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from app.db import tables
from app.releases import store as releases
from app.skills import repairs
from app.tasks import queue
from app.tasks import store as tasks
from tests.support.api_app import ApiApp, problem

SENT = {
    "instruction": "archive my mails",
    "conversation": "user: hello",
    "scenario": "archive",
    "principal": "iris",
    "priority": 3,
    "variables": {"world": "w7"},
    "use_skills": False,
    "check": "score = 1",
}


async def rerun(api: ApiApp, task_id: UUID, **changes: Any) -> dict[str, Any]:
    """The view of the new task."""
    answer = await api.client.post(f"/v1/tasks/{task_id}/rerun", json=changes)
    assert answer.status_code == 202, answer.text
    shown: dict[str, Any] = (await api.client.get(answer.json()["links"]["self"])).json()
    return shown


async def test_a_task_run_again_is_like_the_first_and_names_it(api: ApiApp) -> None:
    first = await api.submit(**SENT)  # type: ignore[arg-type]
    again = await rerun(api, first)
    assert {name: again[name] for name in SENT} == SENT
    assert (again["state"], again["rerun_of"], again["project"]) == ("accepted", str(first), "demo")
    assert again["id"] != str(first)
    listed = (await api.client.get("/v1/tasks", params={"rerun_of": str(first)})).json()["tasks"]
    assert [task["id"] for task in listed] == [again["id"]]


async def test_it_needs_no_body(api: ApiApp) -> None:
    first = await api.submit()
    answer = await api.client.post(f"/v1/tasks/{first}/rerun")
    assert answer.status_code == 202, answer.text


async def test_fields_that_are_given_replace_those_of_the_task_and_null_removes(api: ApiApp) -> None:
    first = await api.submit(**SENT)  # type: ignore[arg-type]
    again = await rerun(api, first, instruction="archive all", check=None, scenario=None, use_skills=True)
    assert (again["instruction"], again["check"], again["scenario"]) == ("archive all", None, None)
    assert (again["use_skills"], again["priority"]) == (True, 3)


async def test_the_release_that_is_asked_for_serves_it_and_no_canary_counts_it(api: ApiApp) -> None:
    first = await api.submit()
    async with api.sessions.begin() as session:
        newer = await releases.propose(session, api.demo.id, "a" * 32)
        await releases.activate(session, newer.id)
    pinned = await rerun(api, first, release=1)
    async with api.sessions.begin() as session:
        claimed: dict[str, tables.Task] = {}
        while row := await queue.claim(session, f"owner-{len(claimed)}", 30):
            claimed[str(row.id)] = row
    assert claimed[str(first)].release_id == newer.id
    served = (await api.client.get(f"/v1/tasks/{pinned['id']}")).json()["release"]
    assert served["number"] == 1
    assert claimed[pinned["id"]].pinned
    assert not claimed[str(first)].pinned


async def test_a_release_that_never_served_is_refused(api: ApiApp) -> None:
    first = await api.submit()
    async with api.sessions.begin() as session:
        await releases.propose(session, api.demo.id, "a" * 32)
    answer = await api.client.post(f"/v1/tasks/{first}/rerun", json={"release": 2})
    assert answer.status_code == 409
    assert "replay" in str(problem(answer)["detail"])
    assert (await api.client.post(f"/v1/tasks/{first}/rerun", json={"release": 9})).status_code == 404


@pytest.mark.parametrize(
    "body", [{"instruction": " "}, {"check": "score ="}, {"rerun_of": None}, {"release": 0}, {"priority": 200}]
)
async def test_an_invalid_change_is_refused(api: ApiApp, body: dict[str, Any]) -> None:
    first = await api.submit()
    answer = await api.client.post(f"/v1/tasks/{first}/rerun", json=body)
    assert answer.status_code == 400
    assert len((await api.client.get("/v1/tasks")).json()["tasks"]) == 1


async def test_the_same_key_runs_it_again_once(api: ApiApp) -> None:
    first = await api.submit()
    path, key = f"/v1/tasks/{first}/rerun", {"Idempotency-Key": "once"}
    ids = {(await api.client.post(path, headers=key)).json()["id"] for _ in range(2)}
    assert len(ids) == 1
    assert (await api.client.post(path, headers=key, json={"priority": 1})).status_code == 409


async def test_a_task_that_was_to_repair_a_skill_only_reads_again_and_counts_once(api: ApiApp) -> None:
    repair = tasks.NewTask(instruction="write it anew", repairs=uuid4(), pinned=True)
    async with api.sessions.begin() as session:
        first = await tasks.submit(session, api.demo.id, repair)
    again = await rerun(api, first.id)
    assert again["repairs"] == str(repair.repairs)
    async with api.sessions() as session:
        assert (await tasks.get(session, UUID(again["id"]))).pinned
        assert await repairs.tasks_today(session, api.demo.id) == 1


async def test_an_erased_task_leaves_its_repetition(api: ApiApp) -> None:
    first = await api.submit()
    again = await rerun(api, first)
    await api.client.post(f"/v1/tasks/{first}/cancel")
    assert (await api.client.delete(f"/v1/tasks/{first}")).status_code == 200
    assert (await api.client.get(f"/v1/tasks/{again['id']}")).json()["rerun_of"] is None


async def test_an_unknown_task_cannot_be_run_again(api: ApiApp) -> None:
    assert (await api.client.post(f"/v1/tasks/{uuid4()}/rerun")).status_code == 404
