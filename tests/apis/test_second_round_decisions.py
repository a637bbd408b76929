"""Second round of attacks: on decisions by people, on skills of another principal, and on webhooks' targets."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio

from app.apis.approvals import store as approvals
from app.db import tables
from app.projects import webhooks
from app.skills import moves
from app.skills import store as skills
from app.skills.admission import admit
from app.skills.library import Library
from tests.apis.test_approvals_api import waiting
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.emptied_database import emptied_database
from tests.support.every_row import every_row
from tests.support.rows import task_row
from tests.support.webhook_messages import sending, set_webhook, settled
from tests.web.test_second_round_edge import send_raw

_SOURCE = "def archive(name: str) -> int:\n    return apis.mail.archive(name=name)\n"
_QUESTION = "archive my mails from iris"
_TOKEN = "T0K3N-4711"


@pytest_asyncio.fixture(scope="module")
async def stage(database_url: str) -> AsyncIterator[ApiApp]:
    """One application for all attacks; each brings a project of its own."""
    async with (
        emptied_database(database_url) as database,
        open_api_app(database.sessions, database_url) as api,
    ):
        yield api


async def asked(api: ApiApp, seconds: float = 60) -> tables.Approval:
    """An approval that waits, in a new project."""
    return await waiting(api, await own_project(api), seconds)


async def decide(api: ApiApp, row: tables.Approval, **more: object) -> httpx.Response:
    return await api.client.post(f"/v1/approvals/{row.id}", json={"decision": "approve", **more})


async def state_of(api: ApiApp, row: tables.Approval) -> str:
    return str((await api.client.get(f"/v1/approvals/{row.id}")).json()["state"])


@pytest.mark.parametrize("first", ["approve", "refuse"])
@pytest.mark.parametrize("second", ["approve", "refuse"])
async def test_a_second_decision_changes_nothing(stage: ApiApp, first: str, second: str) -> None:
    row = await asked(stage)
    await decide(stage, row, decision=first)
    before = (await stage.client.get(f"/v1/approvals/{row.id}")).json()
    assert (await decide(stage, row, decision=second, reason="changed my mind")).status_code == 409
    assert (await stage.client.get(f"/v1/approvals/{row.id}")).json() == before


@pytest.mark.parametrize("settle", [False, True], ids=["before the server noticed", "after"])
async def test_a_call_cannot_be_approved_after_its_time(stage: ApiApp, settle: bool) -> None:
    row = await asked(stage, seconds=-1)
    if settle:
        async with stage.sessions.begin() as session:
            assert await approvals.expire_next(session) == row.id
    answer = await decide(stage, row)
    assert answer.status_code == 409
    assert "already expired" in str(problem(answer)["detail"])
    async with stage.sessions.begin() as session:  # no other test finds it due
        await approvals.expire_next(session)
    assert await state_of(stage, row) == "expired"


async def test_a_call_of_a_cancelled_task_cannot_be_approved(stage: ApiApp) -> None:
    row = await asked(stage)
    await stage.client.post(f"/v1/tasks/{row.task_id}/cancel")
    assert (await decide(stage, row)).status_code == 409
    assert await state_of(stage, row) == "withdrawn"


_BODIES = {
    "1 MB": f'"reason": "{"x" * 1_000_000}"',
    "NUL": '"reason": "a\\u0000"',
    "half a pair": '"reason": "\\ud800"',
    "a list": '"reason": ["x"]',
    "another call": '"arguments": {"to": "evil"}',
    "another state": '"state": "approved"',
    "another actor": '"decided_by": "key root"',
    "upper case": '"decision": "APPROVE"',
    "both": '"decision": ["approve", "refuse"]',
    "deep": f'"reason": {"[" * 5_000}{"]" * 5_000}',
}


@pytest.mark.parametrize("field", _BODIES.values(), ids=_BODIES)
async def test_an_odd_decision_decides_nothing(stage: ApiApp, field: str) -> None:
    row = await asked(stage)
    answer = await send_raw(stage, "POST", f"/v1/approvals/{row.id}", f'{{"decision": "approve", {field}}}')
    assert answer.status_code == 400, answer.text
    assert await state_of(stage, row) == "waiting"


@pytest.mark.parametrize(
    "reason", ["\x1b[2J", "a\r\nevent: done\r\n\r\n", "\u202e\u2066", "{0.__class__}", "\x7f\x9b"]
)
async def test_control_characters_of_a_reason_stay_data(stage: ApiApp, reason: str) -> None:
    row = await asked(stage)
    answer = await decide(stage, row, decision="refuse", reason=reason)
    assert (answer.status_code, answer.json()["reason"]) == (200, reason)
    events = (await stage.client.get(f"/v1/tasks/{row.task_id}")).json()
    assert events["id"] == str(row.task_id)


async def written(api: ApiApp, project_id: UUID, principal: str, source: str = _SOURCE, taint: str = "") -> UUID:
    new = skills.NewSkill(
        name="archive",
        signature="archive(name: str) -> int",
        source=source,
        apis=["mail.archive"],
        instruction=_QUESTION,
        principal=principal,
        taint=taint,
        manifest={"operations": {}},
    )
    async with api.sessions.begin() as session:
        return (await admit(session, project_id, new)).id


async def offered(api: ApiApp, project_id: UUID, principal: str) -> list[UUID]:
    found = await Library(api.sessions).find(project_id, _QUESTION, principal=principal)
    return [each.skill_id for each in found]


async def own_project(api: ApiApp, policy: str = "evidence") -> tables.Project:
    """A new project."""
    project = await api.project(f"p-{uuid4().hex[:8]}")
    await api.client.patch(f"/v1/projects/{project.name}", json={"settings": {"skills": policy}})
    return project


_OTHERS = ["bob", "", "Ann", "ann ", " ann", "ann\n", "a\u0301nn", "ANN", "an_", "%", "ann'--", "\uff41nn"]


async def test_what_is_in_quarantine_is_offered_to_nobody_else(stage: ApiApp) -> None:
    with every_row() as row:
        for other in _OTHERS:
            for policy in ["evidence", "review"]:
                with row(other, policy):
                    project = await own_project(stage, policy)
                    poisoned = await written(stage, project.id, "ann", taint="an answer of mail.list")
                    assert await offered(stage, project.id, "ann") == [poisoned]
                    assert await offered(stage, project.id, other) == []


@pytest.mark.parametrize("same", [True, False], ids=["the same source", "another source"])
@pytest.mark.parametrize("first", ["ann", "bob"])
async def test_the_same_name_brings_no_version_of_another_principal(stage: ApiApp, same: bool, first: str) -> None:
    project = await own_project(stage)
    sources = {"ann": _SOURCE, "bob": _SOURCE if same else _SOURCE + "# mine\n"}
    order = [first, *(each for each in sources if each != first)]
    ids = {who: await written(stage, project.id, who, sources[who], taint="an answer of mail") for who in order}
    assert len(set(ids.values())) == 2
    for who, own in ids.items():
        assert await offered(stage, project.id, who) == [own]
    assert await offered(stage, project.id, "carol") == []


async def test_a_quarantined_version_does_not_replace_the_active_one_of_others(stage: ApiApp) -> None:
    project = await own_project(stage)
    good = await written(stage, project.id, "")
    await stage.client.post(f"/v1/skills/{good}/approve")
    bad = await written(stage, project.id, "ann", _SOURCE + "# worse\n", taint="an answer of mail.list")
    assert await offered(stage, project.id, "bob") == [good]
    assert bad not in await offered(stage, project.id, "")


async def test_a_held_skill_is_offered_to_nobody_and_cannot_be_restored(stage: ApiApp) -> None:
    project = await own_project(stage)
    skill = await written(stage, project.id, "ann")
    async with stage.sessions.begin() as session:
        await moves.quarantine(session, skill, "it called beyond its manifest", 1)
    for who in ("ann", "bob", ""):
        assert await offered(stage, project.id, who) == []
    assert (await stage.client.post(f"/v1/skills/{skill}/restore")).status_code == 409
    assert await written(stage, project.id, "ann") == skill, "writing it again does not bring it back"
    assert await offered(stage, project.id, "ann") == []


@pytest.mark.parametrize("ways", [["retire"], ["retire", "delete"]], ids=str)
@pytest.mark.parametrize("move", ["approve", "retire", "restore"])
async def test_what_is_out_is_not_approved_and_what_is_deleted_stays_so(
    stage: ApiApp, ways: list[str], move: str
) -> None:
    project = await own_project(stage)
    skill = await written(stage, project.id, "ann")
    for way in ways:
        path = f"/v1/skills/{skill}" + ("" if way == "delete" else f"/{way}")
        assert (await stage.client.request("DELETE" if way == "delete" else "POST", path)).is_success
    answer = await stage.client.post(f"/v1/skills/{skill}/{move}")
    restored = ways == ["retire"] and move == "restore"
    assert answer.status_code == (200 if restored else 409)
    assert await offered(stage, project.id, "ann") == ([skill] if restored else [])


async def test_a_key_without_the_scope_moves_no_skill(stage: ApiApp) -> None:
    with every_row() as row:
        for move in ["approve", "retire", "restore", ""]:
            for scopes in [["tasks"], ["approvals"], ["tasks", "approvals"]]:
                with row(move, scopes):
                    project = await own_project(stage)
                    skill = await written(stage, project.id, "ann", taint="an answer of mail.list")
                    headers = await stage.key(*scopes, project_id=project.id)
                    path = f"/v1/skills/{skill}/{move}".rstrip("/")
                    answer = await stage.client.request("POST" if move else "DELETE", path, headers=headers)
                    assert answer.status_code == 403
                    assert (await stage.client.get(f"/v1/skills/{skill}")).json()["state"] == "quarantined"


_PRIVATE = ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "localhost", "LOCALHOST.",
            "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[::]",
            "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021"]  # fmt: skip


async def test_no_spelling_of_a_private_host_is_reached(stage: ApiApp) -> None:
    with every_row() as row:
        for host in _PRIVATE:
            with row(host):
                await _is_not_reached(stage, host)


async def _is_not_reached(stage: ApiApp, host: str) -> None:
    reached: list[str] = []

    async def receive(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(host)
        writer.close()

    project = await own_project(stage)
    async with await asyncio.start_server(receive, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        given = await set_webhook(stage, f"http://{host}:{port}/", project.name)
        assert given.status_code in (200, 400)
        if given.status_code == 200:
            async with stage.sessions.begin() as session:
                task = await task_row(session, project.id)
                await webhooks.enqueue(session, project.id, task.id, "task.done", {})
            async with sending(stage.sessions, private=False):
                deliveries = await settled(stage)
            assert [each["state"] for each in deliveries if each["project"] == project.name] == ["failed"]
    assert reached == []


@pytest.mark.parametrize("scope", ["tasks", "admin"])
@pytest.mark.parametrize("path", ["", "/{name}"])
async def test_the_token_in_a_webhooks_address_is_shown_to_administrators_only(
    stage: ApiApp, scope: str, path: str
) -> None:
    name = (await own_project(stage)).name
    url = f"https://hooks.example.org:8443/{_TOKEN}/x?key={_TOKEN}"
    assert (await set_webhook(stage, url, name)).status_code == 200
    headers = await stage.key(scope)
    shown = (await stage.client.get("/v1/projects" + path.format(name=name), headers=headers)).text
    assert "https://hooks.example.org:8443/" in shown
    assert (_TOKEN in shown) == (scope == "admin")
