"""Every change over REST or in the console leaves an entry in the audit log, or is listed here with a reason."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import count, repeat
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from app.apis.approvals import store as approvals
from app.apis.approvals.gate import ApprovalRequest, ShownCall
from app.apis.calls.network import open_client
from app.base.values import Call, Stop
from app.db import tables
from app.db.database import Sessions
from app.releases import store as releases
from app.skills import store as skills
from app.tasks import calls, queue, turns
from tests.support.agent_skill_samples import folder
from tests.support.api_app import ApiApp, open_api_app
from tests.support.every_row import every_row
from tests.support.ledger import Ledger
from tests.support.named_adapters import make_named
from tests.support.odd_endpoint import OddEndpoint
from tests.support.rows import LEASE, new_skill, task_row, turn_of
from tests.support.served_scores import serve_scored
from tests.support.small_internet import SmallInternet, found
from tests.support.tiny_model import make_model_dir

EXCEPTIONS = {
    "POST /v1/tasks": "the task is the record: it has its key, and events",
    "POST /v1/tasks/{task_id:uuid}/cancel": "the task is the record",
    "POST /v1/tasks/{task_id:uuid}/rerun": "the task is the record",
    "POST /v1/chat/completions": "the task is the record",
    "POST /v1/skills/{skill_id:uuid}/run": "the task is the record",
    "POST /v1/tasks/{task_id:uuid}/replay": "it has no effects, and its row is the record",
    "POST /v1/releases/{release_id:uuid}/shadow": "it has no effects, and its rows are the record",
    "POST /v1/apis/{name:str}/test": "it only reads",
    "POST /v1/apis/{name:str}/trial": "it only reads, and its row is the record",
    "POST /v1/apis/{name:str}/practice": "it only reads, and its row is the record",
    "POST /v1/webhooks/deliveries/{delivery_id:uuid}/resend": "the delivery is the record",
    "POST /console/skills/change": "it moves skills, and every move is audited",
    "POST /console/theme": "a cookie of the browser",
    "POST /console/sign-in": "it changes nothing but who looks",
    "POST /console/sign-out": "it changes nothing but who looks",
}
CONSOLE = {
    "POST /console/tasks": "submit_request",
    "POST /console/tasks/{task_id:uuid}/cancel": "request_cancel",
    "POST /console/tasks/{task_id:uuid}/approvals/{approval_id:uuid}": "decide",
    "POST /console/tasks/{task_id:uuid}/feedback": "give_feedback",
    "POST /console/tasks/{task_id:uuid}/rerun": "repeat",
    "POST /console/tasks/{task_id:uuid}/replay": "ask_replay",
    "POST /console/tasks/{task_id:uuid}/settle": "settle",
    "POST /console/approvals/{approval_id:uuid}": "decide",
    "POST /console/feedback/{task_id:uuid}": "give_feedback",
    "POST /console/apis/new-api": "register_api",
    "POST /console/apis/{name:str}/test": "call_api",
    "POST /console/apis/{name:str}/trial": "renew_trial",
    "POST /console/apis/{name:str}/practice": "change_api",
    "POST /console/apis/{name:str}/practice/compare": "compare_api",
    "POST /console/apis/{name:str}/credentials/{scheme:str}/connect": "connect_api",
    "POST /console/apis/{name:str}/delete": "remove_api",
    "POST /console/apis/{name:str}/credentials/{scheme:str}/delete": "delete_credential",
    "POST /console/apis/{name:str}/refresh": "refresh_document",
    "POST /console/apis/{name:str}/credentials/{scheme:str}": "store_credential",
    "POST /console/apis/{api:str}/operations/{operation:str}": "set_for_operation",
    "POST /console/releases/{release_id:uuid}/activate": "activate",
    "POST /console/releases/{release_id:uuid}/canary/start": "begin",
    "POST /console/releases/{release_id:uuid}/canary/end": "end",
    "POST /console/runs/new": "start_run",
    "POST /console/runs/{run_id:uuid}/cancel": "cancel_run",
    "POST /console/runs/{run_id:uuid}/retry": "retry_run",
    "POST /console/runs/schedule/delete": "remove_schedule",
    "POST /console/runs/schedule": "put_schedule",
    "POST /console/exams/{name:str}/delete": "delete_exam",
    "POST /console/models": "add_hosted",
    "POST /console/models/{name:str}/probe": "probe_hosted",
    "POST /console/models/{name:str}/delete": "remove_hosted",
    "POST /console/secrets/{name:str}/delete": "delete_secret",
    "POST /console/secrets": "store_secret",
    "POST /console/projects/{name:str}": "change_project",
    "POST /console/projects": "create_project",
    "POST /console/projects/{name:str}/delete": "delete_project",
    "POST /console/keys": "add_key",
    "POST /console/keys/{key_id:uuid}/revoke": "revoke_key",
    "POST /console/webhooks/{delivery_id:uuid}/resend": "resend",
}
"""The function that a route of the console has in common with one of REST."""


def handlers(api: ApiApp, *methods: str) -> dict[str, Callable[..., Any]]:
    """All routes of these methods."""
    found = {}
    for route in api.app.routes:
        for method in getattr(route, "methods", ()):
            if method in methods:
                handler = route.route_handler_map[method]  # type: ignore[union-attr]
                handler = handler[0] if isinstance(handler, tuple) else handler
                found[f"{method} {route.path}"] = handler.fn
    return found


@pytest.fixture
async def api(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[ApiApp]:
    versions = count()

    def changing(_: str) -> bytes:
        paths = {f"/v{next(versions)}": {"get": {"operationId": "read"}}}
        return found(json.dumps({"openapi": "3.1.0", "servers": [{"url": "/"}], "paths": paths}).encode())

    internet = SmallInternet({"news.test": repeat("9.9.9.9")}, {"/openapi.json": changing})
    async with (
        internet.online(),
        open_client(allow_private_hosts=False, network=internet.public) as client,
        open_api_app(committed, database_url, directory=tmp_path, http_client=client) as opened,
    ):
        yield opened


NOTHING: Mapping[str, str] = MappingProxyType({})


class Walk:
    """Makes changes, and notes the routes that left an entry."""

    def __init__(self, api: ApiApp) -> None:
        self.api = api
        self.audited: dict[str, int] = {}

    async def __call__(
        self, route: str, sent: Any = None, /, *, query: Mapping[str, str] = NOTHING, **path: Any
    ) -> Any:
        before = await self._entries()
        method, _, address = route.partition(" ")
        for name, value in path.items():
            address = address.replace(f"{{{name}:uuid}}", str(value)).replace(f"{{{name}:str}}", str(value))
        body = {"content": sent} if isinstance(sent, bytes) else {"json": sent} if sent is not None else {}
        answer = await self.api.client.request(method, address, params=dict(query), **body)
        assert answer.is_success, (route, answer.text)
        self.audited[route] = await self._entries() - before
        return answer.json() if answer.content else None

    async def _entries(self) -> int:
        entries = (await self.api.client.get("/v1/audit", params={"limit": "200"})).json()["entries"]
        return len(entries)


async def test_every_change_is_audited(api: ApiApp, tmp_path: Path) -> None:
    walk = Walk(api)
    await _apis(walk)
    await _keys_and_secrets(walk)
    await _tasks(walk)
    await _skills(walk)
    await _learning(walk)
    await _releases(walk, make_named(make_model_dir(tmp_path / "model"), tmp_path, 1))
    await walk("PATCH /v1/projects/{name:str}", {"settings": {"skills": "review"}}, name="demo")
    await walk("POST /v1/projects", {"name": "other"})
    await walk("DELETE /v1/projects/{name:str}", name="other")
    every = handlers(api, "POST", "PUT", "PATCH", "DELETE")
    both = every | handlers(api, "GET")
    rest = {name for route, handler in both.items() if " /v1/" in route for name in _called(handler)}
    with every_row() as row:
        for route, handler in every.items():
            with row(route):
                if route in CONSOLE:
                    assert CONSOLE[route] in rest & _called(handler), "REST does not call it"
                else:
                    assert (route in EXCEPTIONS) != (route in walk.audited), "neither audited nor listed, or both"
                    assert walk.audited.get(route, 1) > 0, "no entry"
    assert not {*EXCEPTIONS, *CONSOLE} - every.keys()


def _called(handler: Callable[..., Any]) -> set[str]:
    return set(handler.__code__.co_names)


async def _apis(walk: Walk) -> None:
    document = Ledger().document("http://ledger.test")
    await walk("POST /v1/apis", {"name": "ledger", "document": document})
    await walk("PATCH /v1/apis/{name:str}", {"token_origins": ["http://other.test"]}, name="ledger")
    await walk(
        "PATCH /v1/apis/{name:str}/operations/{operation:str}",
        {"hidden": True},
        name="ledger",
        operation="list_entries",
    )
    sent = {"value": "a-key-of-the-api", "place": "header", "name": "X-Key"}
    await walk("PUT /v1/apis/{name:str}/credentials/{scheme:str}", sent, name="ledger", scheme="own")
    await walk("DELETE /v1/apis/{name:str}/credentials/{scheme:str}", name="ledger", scheme="own")
    await walk("POST /v1/apis", {"name": "news", "url": "http://news.test/openapi.json"})
    await walk("POST /v1/apis/{name:str}/refresh", name="news")
    await walk("DELETE /v1/apis/{name:str}", name="news")


async def _keys_and_secrets(walk: Walk) -> None:
    key = await walk("POST /v1/keys", {"name": "ci", "scopes": ["tasks"]})
    await walk("DELETE /v1/keys/{key_id:uuid}", key_id=key["id"])
    await walk("PUT /v1/secrets/{name:str}", {"value": "a-long-secret"}, name="mail")
    await walk("DELETE /v1/secrets/{name:str}", name="mail")
    async with OddEndpoint().listening() as url:
        await walk("POST /v1/hosted-models", {"name": "wise", "url": url, "model": "wise-1"})
        await walk("POST /v1/hosted-models/{name:str}/probe", name="wise")
    async with walk.api.sessions.begin() as session:
        failed = await task_row(session, walk.api.demo.id)
        failed.state, failed.finished_at = tables.TaskState.FAILED, failed.created_at
    await walk("POST /v1/hosted-models/{name:str}/tasks", {"tasks": "failed"}, name="wise")
    await walk("PATCH /v1/hosted-models/{name:str}", {"price_in": 1}, name="wise")
    for task in (await walk.api.client.get("/v1/tasks", params={"state": "accepted"})).json()["tasks"]:
        assert (await walk.api.client.post(f"/v1/tasks/{task['id']}/cancel")).is_success
    await walk("DELETE /v1/hosted-models/{name:str}", name="wise")


async def _tasks(walk: Walk) -> None:
    api = walk.api
    async with api.sessions.begin() as session:
        await task_row(session, api.demo.id)
        task = await queue.claim(session, "me", LEASE)
        assert task is not None
        wanted = ApprovalRequest(seq=0, turn=0, api="ledger.add", arguments={}, digest="d", timeout_seconds=60)
        asked = await approvals.request(session, task, "me", wanted, ShownCall({}))
        assert asked is not None
    await walk("POST /v1/approvals/{approval_id:uuid}", {"decision": "refuse"}, approval_id=asked.id)
    async with api.sessions.begin() as session:
        await queue.claim(session, "me", LEASE)
        await queue.finish(session, task.id, "me", queue.TaskOutcome(state=tables.TaskState.DONE))
    await walk("POST /v1/feedback", {"task_id": str(task.id), "score": 1})
    await walk("DELETE /v1/tasks/{task_id:uuid}", task_id=task.id)
    ended = await api.submit(principal="ann")
    assert (await api.client.post(f"/v1/tasks/{ended}/cancel")).is_success
    await walk("DELETE /v1/tasks", query={"principal": "ann"})
    async with api.sessions.begin() as session:
        doubtful = await task_row(session, api.demo.id)
        await queue.claim(session, "me", LEASE)
        await turns.begin(session, doubtful.id, "me", 0, turn_of())
        lost = Call(seq=0, turn=0, api="ledger.add_entry", arguments={})
        await calls.begin(session, doubtful.id, "me", lost, repeatable=False)
        ending = queue.TaskOutcome(state=tables.TaskState.DONE, stop=Stop.IN_DOUBT)
        await queue.finish(session, doubtful.id, "me", ending)
    await walk("POST /v1/tasks/{task_id:uuid}/settle", {"arrived": False}, task_id=doubtful.id)


async def _skills(walk: Walk) -> None:
    await walk("POST /v1/skills/import", {"folders": [msgspec.to_builtins(folder())]})
    async with walk.api.sessions.begin() as session:
        skill = (await skills.add(session, walk.api.demo.id, new_skill("greet"))).id
    await walk("POST /v1/skills/{skill_id:uuid}/retire", skill_id=skill)
    await walk("POST /v1/skills/{skill_id:uuid}/restore", skill_id=skill)
    [held] = (await walk.api.client.get("/v1/skills?state=quarantined")).json()["skills"]
    await walk("POST /v1/skills/{skill_id:uuid}/approve", skill_id=held["id"])
    await walk("DELETE /v1/skills/{skill_id:uuid}", skill_id=skill)


async def _learning(walk: Walk) -> None:
    settings = {"kind": "logged"}
    async with walk.api.sessions.begin() as session:
        await serve_scored(session, walk.api.demo.id, 1.0, 0.0)
    run = (await walk("POST /v1/training-runs", {"settings": settings}))["id"]
    await walk("POST /v1/training-runs/{run_id:uuid}/cancel", run_id=run)
    await walk("POST /v1/training-runs/{run_id:uuid}/retry", run_id=run)
    await walk("PUT /v1/schedule", {"settings": settings, "every_hours": 24})
    await walk("DELETE /v1/schedule")
    turns = [{"role": "user", "content": "do it"}, {"role": "assistant", "content": "done"}]
    dataset = await walk("POST /v1/datasets", json.dumps({"messages": turns}).encode() + b"\n")
    await walk("DELETE /v1/datasets/{dataset_id:uuid}", dataset_id=dataset["id"])
    await walk("POST /v1/exams", {"name": "mine", "tasks": [{"instruction": "go", "check": "score = 1.0"}]})
    await walk("DELETE /v1/exams/{name:str}", name="mine")


async def _releases(walk: Walk, adapter: str) -> None:
    made = (await walk("POST /v1/releases", {"adapter": adapter}))["id"]
    await walk("POST /v1/releases/{release_id:uuid}/canary", {"percent": 10}, release_id=made)
    await walk("DELETE /v1/releases/{release_id:uuid}/canary", release_id=made)
    async with walk.api.sessions.begin() as session:
        other = (await releases.propose(session, walk.api.demo.id, "f00d")).id
    await walk("POST /v1/releases/{release_id:uuid}/activate", release_id=other)
