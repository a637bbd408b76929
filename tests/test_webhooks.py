"""Messages to webhooks: signed, retried, resent, and none held up by another project's receiver."""

import base64
import hashlib
import hmac
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import select

from app.db import approvals, models, projects, task_queue
from app.db.database import Sessions
from app.db.models import TaskState
from app.gateway.http_client import open_client
from app.manual.site.manual_pages import DIRECTORY
from app.project.approval import ApprovalRequest
from app.runner.webhook_sender import WebhookOptions, WebhookSender
from tests.api_app import ApiApp, open_api_app, problem
from tests.ledger_project import until
from tests.rows import LEASE, task_row
from tests.webhook_receiver import Received, WebhookReceiver

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
FAST = WebhookOptions(poll_seconds=0.05, timeout=0.4, delays=(0.05, 0.05))


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@asynccontextmanager
async def sending(
    sessions: Sessions, options: WebhookOptions = FAST, *, private: bool = True
) -> AsyncIterator[WebhookSender]:
    async with (
        open_client(allow_private_hosts=private) as client,
        WebhookSender(sessions, client, options) as sender,
    ):
        yield sender


async def set_webhook(api: ApiApp, url: str, project: str = "demo", **more: Any) -> httpx.Response:
    webhook = {"url": url, "secret": SECRET, **more}
    return await api.client.patch(f"/v1/projects/{project}", json={"settings": {"webhook": webhook}})


async def end_task(api: ApiApp, project_id: UUID | None = None, state: TaskState = TaskState.DONE) -> UUID:
    async with api.sessions.begin() as session:
        task = await task_row(session, project_id or api.demo.id)
        claimed = await task_queue.claim(session, "me", LEASE)
        assert claimed is not None
        await task_queue.finish(session, task.id, "me", task_queue.TaskOutcome(state=state, score=0.5))
        return task.id


async def deliveries(api: ApiApp, **params: str) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await api.client.get("/v1/webhooks/deliveries", params=params)).json()[
        "deliveries"
    ]
    return listed


async def settled(api: ApiApp) -> list[dict[str, Any]]:
    async def none_pending() -> bool:
        return not await deliveries(api, state="pending")

    await until(none_pending)
    return await deliveries(api)


def is_signed(message: Received, secret: str = SECRET) -> bool:
    """Verified as a receiver would, by the specification alone."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode() + message.body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    recent = abs(time.time() - int(message.headers["webhook-timestamp"])) < 60
    return recent and hmac.compare_digest(expected, message.headers["webhook-signature"])


async def test_the_end_of_a_task_is_told_once_and_signed(api: ApiApp) -> None:
    receiver = WebhookReceiver()
    async with receiver.listening() as url, sending(api.sessions), sending(api.sessions):
        await set_webhook(api, url)
        task_id = await end_task(api)
        [delivery] = await settled(api)
    [message] = receiver.received
    assert is_signed(message)
    assert not is_signed(message, "whsec_" + base64.b64encode(bytes(32)).decode())
    assert message.headers["webhook-id"] == f"msg_{UUID(delivery['id']).hex}"
    assert (delivery["state"], delivery["status"], delivery["attempts"]) == ("delivered", 204, 1)
    assert delivery["message"]["type"] == "task.done"
    expected = {"project": "demo", "task_id": str(task_id), "state": "done", "score": 0.5}
    assert expected.items() <= delivery["message"]["data"].items()


async def test_a_message_is_repeated_with_the_same_id_and_body_until_it_is_accepted(api: ApiApp) -> None:
    receiver = WebhookReceiver(500, 404)
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        await end_task(api)
        [delivery] = await settled(api)
    assert (delivery["state"], delivery["attempts"], delivery["error"]) == ("delivered", 3, None)
    assert len({(each.headers["webhook-id"], each.body) for each in receiver.received}) == 1
    assert all(map(is_signed, receiver.received))


async def test_after_the_last_attempt_it_is_failed_and_can_be_sent_again(api: ApiApp) -> None:
    receiver = WebhookReceiver(500, 500, 503)
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        await end_task(api)
        [failed] = await settled(api)
        assert (failed["state"], failed["attempts"], failed["status"]) == ("failed", 3, 503)
        assert failed["error"] == "it answered with an error: status 503"
        answer = await api.client.post(f"/v1/webhooks/deliveries/{failed['id']}/resend")
        assert (answer.status_code, answer.json()["state"]) == (202, "pending")
        [delivered] = await settled(api)
    assert (delivered["state"], delivered["attempts"]) == ("delivered", 1)
    assert len(receiver.received) == 4


async def test_a_pending_message_is_not_sent_again_and_a_foreign_one_does_not_exist(api: ApiApp) -> None:
    await set_webhook(api, "http://127.0.0.1:9/")
    await end_task(api)
    [pending] = await deliveries(api)
    path = f"/v1/webhooks/deliveries/{pending['id']}/resend"
    assert (await api.client.post(path)).status_code == 409
    other = await api.project("other")
    headers = await api.key("admin", project_id=other.id)
    assert (await api.client.post(path, headers=headers)).status_code == 404
    shown = await api.client.get("/v1/webhooks/deliveries", headers=headers)
    assert shown.json()["deliveries"] == []


@pytest.mark.parametrize(
    ("receiver", "error"),
    [
        (
            WebhookReceiver(*[302] * 3, location="http://127.0.0.1:1/"),
            "redirects, which is not followed: status 302",
        ),
        (WebhookReceiver(pause=1.0), "no answer within 0.4 seconds"),
    ],
)
async def test_redirects_are_not_followed_and_slow_answers_not_awaited(
    api: ApiApp, receiver: WebhookReceiver, error: str
) -> None:
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        await end_task(api)
        [delivery] = await settled(api)
    assert delivery["state"] == "failed"
    assert error in delivery["error"]
    assert len(receiver.received) == 3


async def test_a_receiver_that_is_gone_is_not_asked_again(api: ApiApp) -> None:
    receiver = WebhookReceiver(410)
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        await end_task(api)
        [delivery] = await settled(api)
    assert (delivery["state"], delivery["attempts"]) == ("failed", 1)


async def test_private_addresses_are_closed_where_live_apis_may_not_be_there_either(api: ApiApp) -> None:
    receiver = WebhookReceiver()
    async with receiver.listening() as url, sending(api.sessions, private=False):
        await set_webhook(api, url)
        await end_task(api)
        [delivery] = await settled(api)
    assert "private address 127.0.0.1" in delivery["error"]
    assert receiver.received == []


async def test_a_slow_receiver_delays_only_its_own_messages(api: ApiApp) -> None:
    slow, quick = WebhookReceiver(pause=30), WebhookReceiver()
    other = await api.project("other")
    patient = WebhookOptions(poll_seconds=0.05, timeout=20, concurrency=4)
    async with slow.listening() as slow_url, quick.listening() as quick_url:
        await set_webhook(api, slow_url)
        await set_webhook(api, quick_url, "other")
        for _ in range(8):
            await end_task(api)
        for _ in range(3):
            await end_task(api, other.id)
        async with sending(api.sessions, patient), sending(api.sessions, patient):
            await until(lambda: quick.count(3), 5)
            assert len(slow.received) == 2, "so many messages of one project are under way at once"
        row = (await deliveries(api, project="demo"))[-1]
    assert (row["state"], row["attempts"]) == ("pending", 0), "a message that was interrupted is sent again"


async def test_a_wanted_approval_is_told_together_with_the_suspension(api: ApiApp) -> None:
    await set_webhook(api, "http://127.0.0.1:9/")
    async with api.sessions.begin() as session:
        await task_row(session, api.demo.id)
        task = await task_queue.claim(session, "me", LEASE)
        assert task is not None
        wanted = ApprovalRequest(
            seq=0, turn=0, api="mail.send", arguments={"to": "iris"}, digest="d", timeout_seconds=60
        )
        row = await approvals.request(session, task, "me", wanted)
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
        await task_queue.claim(session, "me", LEASE)
        await task_queue.finish(session, task.id, "me", task_queue.TaskOutcome(state=TaskState.DONE))
        await session.rollback()
    assert await deliveries(api) == []


async def test_the_secret_is_stored_encrypted_and_shown_nowhere(api: ApiApp) -> None:
    answers = [await set_webhook(api, "https://example.org/hook")]
    answers.append(await api.client.get("/v1/projects/demo"))
    answers.append(await api.client.get("/v1/projects"))
    answers.append(await set_webhook(api, "https://example.org/hook", secret=SECRET[:-4] + "AAA="))
    answers.append(await api.client.get("/v1/audit"))
    async with api.sessions() as session:
        stored = (await session.scalars(select(models.Project.webhook_secret))).one()
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
    page = (DIRECTORY / "approvals.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "approvals.md", "exec"), names)
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
