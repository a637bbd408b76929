"""Who may see approvals and decide on them, over REST."""

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import httpx
import pytest

from app.apis.approvals import store as approvals
from app.apis.approvals.gate import ApprovalRequest, ShownCall
from app.db import tables
from app.db.database import Sessions
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app
from tests.support.rows import LEASE, task_row


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def waiting(api: ApiApp, project: tables.Project, seconds: float = 60) -> tables.Approval:
    """A task of the project that waits for a call with a password."""
    async with api.sessions.begin() as session:
        await task_row(session, project.id)
        task = await queue.claim(session, "me", LEASE)
        assert task is not None
        arguments = {"to": "iris", "password": "***"}
        wanted = ApprovalRequest(
            seq=0, turn=0, api="mail.send", arguments=arguments, digest="d", timeout_seconds=seconds
        )
        row = await approvals.request(session, task, "me", wanted, ShownCall(wanted.arguments))
        assert row is not None
        return row


async def get(api: ApiApp, path: str, **params: str) -> httpx.Response:
    return await api.client.get(path, params=params)


async def test_approvals_are_listed_by_project_state_and_task_page_by_page(api: ApiApp) -> None:
    other = await api.project("other")
    mine = [await waiting(api, api.demo) for _ in range(3)]
    foreign = await waiting(api, other)
    await api.client.post(f"/v1/approvals/{mine[0].id}", json={"decision": "refuse", "reason": "no"})

    async def listed(**params: str) -> list[UUID]:
        found = (await get(api, "/v1/approvals", **params)).json()["approvals"]
        return [UUID(each["id"]) for each in found]

    assert await listed() == [foreign.id, *(row.id for row in reversed(mine))]
    assert await listed(project="demo", state="waiting") == [mine[2].id, mine[1].id]
    assert await listed(state="refused") == [mine[0].id]
    assert await listed(task_id=str(mine[1].task_id)) == [mine[1].id]
    first = (await get(api, "/v1/approvals", limit="3")).json()
    assert await listed(limit="3", cursor=first["next_cursor"]) == [mine[0].id]


async def test_an_approval_shows_what_is_asked_and_in_which_task(api: ApiApp) -> None:
    row = await waiting(api, api.demo)
    shown = (await get(api, f"/v1/approvals/{row.id}")).json()
    assert (shown["operation"], shown["arguments"]) == ("mail.send", {"to": "iris", "password": "***"})
    assert (shown["task_id"], shown["instruction"]) == (str(row.task_id), "say hello")
    assert (shown["state"], shown["project"], "digest" in shown) == ("waiting", "demo", False)
    task = (await get(api, f"/v1/tasks/{row.task_id}")).json()
    assert (task["state"], task["approval"]["id"]) == ("waiting", str(row.id))


async def test_a_key_that_submits_tasks_cannot_approve_their_calls(api: ApiApp) -> None:
    row = await waiting(api, api.demo)
    path, body = f"/v1/approvals/{row.id}", {"decision": "approve"}
    for scopes in (["tasks"], ["tasks", "skills"]):
        headers = await api.key(*scopes)
        assert (await api.client.post(path, json=body, headers=headers)).status_code == 403
        assert (await api.client.get(path, headers=headers)).status_code == 403
    headers = await api.key("approvals")
    assert (await api.client.get("/v1/tasks", headers=headers)).status_code == 403
    assert (await api.client.post(path, json=body, headers=headers)).status_code == 200


async def test_approvals_of_another_project_do_not_exist(api: ApiApp) -> None:
    row = await waiting(api, api.demo)
    other = await api.project("other")
    headers = await api.key("approvals", project_id=other.id)
    path = f"/v1/approvals/{row.id}"
    assert (await api.client.get(path, headers=headers)).status_code == 404
    assert (await api.client.post(path, json={"decision": "approve"}, headers=headers)).status_code == 404
    assert (await api.client.get("/v1/approvals", headers=headers)).json()["approvals"] == []
    assert (await get(api, f"/v1/approvals/{uuid4()}")).status_code == 404


@pytest.mark.parametrize("body", [{}, {"decision": "maybe"}, {"decision": "approve", "reason": "x" * 2001}])
async def test_an_unclear_decision_changes_nothing(api: ApiApp, body: dict[str, str]) -> None:
    row = await waiting(api, api.demo)
    assert (await api.client.post(f"/v1/approvals/{row.id}", json=body)).status_code == 400
    assert (await get(api, f"/v1/approvals/{row.id}")).json()["state"] == "waiting"


async def test_a_decision_is_audited_and_wakes_a_runner(api: ApiApp) -> None:
    row = await waiting(api, api.demo)
    await api.client.post(f"/v1/approvals/{row.id}", json={"decision": "refuse", "reason": "too much"})
    [entry] = (await get(api, "/v1/audit", project="demo")).json()["entries"]
    assert (entry["actor"], entry["action"]) == ("key test admin", "approval decided")
    assert (entry["detail"]["decision"], entry["detail"]["reason"]) == ("refused", "too much")
    async with api.sessions.begin() as session:
        claimed = await queue.claim(session, "another", LEASE)
    assert claimed is not None
    assert claimed.id == row.task_id


async def test_approvals_vanish_with_their_project(api: ApiApp) -> None:
    row = await waiting(api, await api.project("other"))
    await api.client.delete("/v1/projects/other")
    assert (await get(api, f"/v1/approvals/{row.id}")).status_code == 404


async def test_the_end_of_a_task_leaves_no_digest_of_its_arguments(api: ApiApp) -> None:
    row = await waiting(api, api.demo)
    await api.client.post(f"/v1/approvals/{row.id}", json={"decision": "approve"})
    async with api.sessions.begin() as session:
        assert (await approvals.get(session, row.id)).digest == "d"
        task = await queue.claim(session, "me", LEASE)
        assert task is not None
        await queue.finish(session, task.id, "me", queue.TaskOutcome(state=tables.TaskState.FAILED, failure="no"))
    async with api.sessions() as session:
        assert (await approvals.get(session, row.id)).digest == ""


async def test_waiting_tasks_are_counted_by_the_metrics(api: ApiApp) -> None:
    await waiting(api, api.demo)
    assert 'sage_tasks{state="waiting"} 1.0' in (await get(api, "/metrics")).text
