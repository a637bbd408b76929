"""The webhook of a project: which events it is told of, its secret, and what is refused."""

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import select

from app.apis.approvals import store as approvals
from app.apis.approvals.gate import ApprovalRequest, ShownCall
from app.db import tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.projects import store as projects
from app.tasks import queue
from app.web.manual import DIRECTORY
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.rows import LEASE, task_row
from tests.support.webhook_messages import deliveries, end_task, sending, set_webhook, settled
from tests.support.webhook_receiver import SECRET, WebhookReceiver


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def test_a_wanted_approval_is_told_together_with_the_suspension(api: ApiApp) -> None:
    await set_webhook(api, "http://127.0.0.1:9/")
    async with api.sessions.begin() as session:
        await task_row(session, api.demo.id)
        task = await queue.claim(session, "me", LEASE)
        assert task is not None
        wanted = ApprovalRequest(
            seq=0, turn=0, api="mail.send", arguments={"to": "iris"}, digest="d", timeout_seconds=60
        )
        row = await approvals.request(session, task, "me", wanted, ShownCall(wanted.arguments))
        assert row is not None
    [delivery] = await deliveries(api)
    assert (delivery["event"], delivery["task_id"]) == ("approval.wanted", str(task.id))
    data = delivery["message"]["data"]
    assert (data["approval_id"], data["operation"], "iris" in str(data)) == (str(row.id), "mail.send", False)


async def test_only_the_events_asked_for_are_sent(api: ApiApp) -> None:
    await set_webhook(api, "http://127.0.0.1:9/", events=["task.failed", "task.cancelled"])
    await end_task(api)
    await end_task(api, state=TaskState.FAILED)
    task_id = await api.submit()
    await api.client.post(f"/v1/tasks/{task_id}/cancel")
    await api.client.post(f"/v1/tasks/{task_id}/cancel")
    assert [each["event"] for each in await deliveries(api)] == ["task.cancelled", "task.failed"]


async def test_without_a_webhook_nothing_is_stored_and_a_removed_one_gets_nothing(api: ApiApp) -> None:
    await end_task(api)
    assert await deliveries(api) == []
    receiver = WebhookReceiver()
    async with receiver.listening() as url:
        await set_webhook(api, url)
        await end_task(api)
        await api.client.patch("/v1/projects/demo", json={"settings": {"webhook": None}})
        async with sending(api.sessions):
            [delivery] = await settled(api)
    assert (delivery["state"], delivery["error"]) == ("failed", "the project has no webhook any more")
    assert receiver.received == []


async def test_an_event_that_is_rolled_back_sends_nothing(api: ApiApp) -> None:
    await set_webhook(api, "http://127.0.0.1:9/")
    async with api.sessions() as session:
        task = await task_row(session, api.demo.id)
        await queue.claim(session, "me", LEASE)
        await queue.finish(session, task.id, "me", queue.TaskOutcome(state=TaskState.DONE))
        await session.rollback()
    assert await deliveries(api) == []


async def test_the_secret_is_stored_encrypted_and_shown_nowhere(api: ApiApp) -> None:
    answers = [await set_webhook(api, "https://example.org/hook")]
    answers.append(await api.client.get("/v1/projects/demo"))
    answers.append(await api.client.get("/v1/projects"))
    answers.append(await set_webhook(api, "https://example.org/hook", secret=SECRET[:-4] + "AAA="))
    answers.append(await api.client.get("/v1/audit"))
    async with api.sessions() as session:
        stored = (await session.scalars(select(tables.Project.webhook_secret))).one()
        project = await projects.by_name(session, "demo")
    assert stored is not None
    assert stored.startswith("enc:")
    assert "secret" not in str(project.settings)
    for answer in answers:
        assert answer.status_code == 200
        assert SECRET[6:20] not in answer.text
        assert stored not in answer.text
    newest, first = answers[-1].json()["entries"]
    assert newest["detail"]["webhook_secret"] == first["detail"]["webhook_secret"] == "changed"


@pytest.mark.parametrize(
    ("webhook", "detail"),
    [
        ({"url": "https://example.org/"}, "webhook.secret is missing"),
        ({"url": "https://example.org/", "secret": "hunter2"}, "openssl rand"),
        ({"url": "https://example.org/", "secret": "whsec_YWJj"}, "24 to 64 bytes"),
        ({"url": "https://example.org/", "secret": None}, "webhook.secret"),
        ({"url": "ftp://example.org/", "secret": SECRET}, "webhook.url"),
        ({"url": "https://", "secret": SECRET}, "webhook.url"),
        ({"url": "https://user:word@example.org/", "secret": SECRET}, "webhook.url"),
        ({"url": "http://example.org:x/", "secret": SECRET}, "webhook.url"),
        ({"url": "http://example.org/a b", "secret": SECRET}, "webhook.url"),
        ({"url": "https://example.org/", "secret": SECRET, "events": ["task.born"]}, "webhook.events"),
    ],
)
async def test_an_invalid_webhook_is_refused_by_name(api: ApiApp, webhook: dict[str, Any], detail: str) -> None:
    answer = await api.client.patch("/v1/projects/demo", json={"settings": {"webhook": webhook}})
    assert answer.status_code == 400
    assert detail in str(problem(answer)["detail"])
    assert (await api.client.get("/v1/projects/demo")).json()["settings"]["webhook"] is None


async def test_the_verification_that_the_manual_shows_accepts_messages_and_no_forgery(api: ApiApp) -> None:
    page = (DIRECTORY / "apis.md").read_text().partition("\n### Webhooks\n")[2]
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "apis.md", "exec"), names)
    receiver = WebhookReceiver()
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        await end_task(api)
        await settled(api)
    [message] = receiver.received
    assert names["verify"](SECRET, message.headers, message.body)
    assert not names["verify"](SECRET, message.headers, message.body + b" ")
    stale = {**message.headers, "webhook-timestamp": str(int(time.time()) - 3600)}
    assert not names["verify"](SECRET, stale, message.body)
