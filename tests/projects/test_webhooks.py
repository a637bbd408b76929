"""Messages to webhooks: signed, retried, resent, pruned, and none held up by another project's receiver."""

import asyncio
import base64
from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import Update, func, update

from app.db import tables
from app.db.database import Sessions
from app.projects import webhooks
from app.projects.webhooks import DeliveryResult, WebhookOptions
from tests.support.api_app import ApiApp, open_api_app
from tests.support.ledger_project import until
from tests.support.webhook_messages import FAST, deliveries, end_task, sending, set_webhook, settled
from tests.support.webhook_receiver import WebhookReceiver, is_signed


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


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


async def test_redirects_are_not_followed(api: ApiApp) -> None:
    receiver = WebhookReceiver(*[302] * 3, location="http://127.0.0.1:1/")
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        await end_task(api)
        [delivery] = await settled(api)
    assert (delivery["state"], len(receiver.received)) == ("failed", 3)
    assert "redirects, which is not followed: status 302" in delivery["error"]


async def test_a_slow_answer_is_not_awaited(api: ApiApp) -> None:
    hasty = msgspec.structs.replace(FAST, timeout=0.4)
    async with WebhookReceiver(pause=1.0).listening() as url, sending(api.sessions, hasty):
        await set_webhook(api, url)
        await end_task(api)
        [delivery] = await settled(api)
    assert (delivery["state"], delivery["attempts"]) == ("failed", 3)
    assert "no answer within 0.4 seconds" in delivery["error"]


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
    slow, quick = WebhookReceiver(pause=3600), WebhookReceiver()
    other = await api.project("other")
    patient = WebhookOptions(poll_seconds=0.05, timeout=3600, concurrency=4)
    async with slow.listening() as slow_url, quick.listening() as quick_url:
        await set_webhook(api, slow_url)
        await set_webhook(api, quick_url, "other")
        for _ in range(8):
            await end_task(api)
        for _ in range(3):
            await end_task(api, other.id)
        async with sending(api.sessions, patient), sending(api.sessions, patient):
            await until(lambda: quick.count(3))
            await until(lambda: slow.count(2))
            assert len(slow.received) == 2, "so many messages of one project are under way at once"
        row = (await deliveries(api, project="demo"))[-1]
    assert (row["state"], row["attempts"]) == ("pending", 0), "a message that was interrupted is sent again"


async def test_the_message_that_is_due_longest_is_claimed_of_a_project_with_few_under_way(api: ApiApp) -> None:
    other = await api.project("other")
    for name in ("demo", "other"):
        await set_webhook(api, "http://127.0.0.1:9/", name)
    ended = [await end_task(api, project_id) for project_id in (None, None, None, other.id, other.id)]
    claimed = []
    for owner in "abcde":
        async with api.sessions.begin() as session:
            row = await webhooks.QUEUE.claim_due(session, owner, 60, per_project=2)
            claimed.append(row and row.task_id)
    assert claimed == [ended[0], ended[1], ended[3], ended[4], None]
    async with api.sessions.begin() as session:
        await webhooks.QUEUE.hand_back_unsent(session, "b")
        row = await webhooks.QUEUE.claim_due(session, "f", 60, per_project=2)
    assert row is not None
    assert (row.task_id, row.attempt) == (ended[1], 1)


async def test_of_two_claims_of_one_process_only_the_later_one_sends_and_records(api: ApiApp) -> None:
    await set_webhook(api, "http://127.0.0.1:9/")
    await end_task(api)
    async with api.sessions.begin() as session:
        stalled = await webhooks.QUEUE.claim_due(session, "process/first", 60, per_project=2)
        assert stalled is not None
        assert await webhooks.QUEUE.is_claimed(session, stalled)
        await session.execute(_expire())
        assert not await webhooks.QUEUE.is_claimed(session, stalled), "another may claim it any moment"
    async with api.sessions.begin() as session:
        later = await webhooks.QUEUE.claim_due(session, "process/second", 60, per_project=2)
        assert later is not None
        assert not await webhooks.QUEUE.is_claimed(session, stalled)
        assert not await webhooks.record(session, stalled, DeliveryResult(status=500, error="late"), None)
    async with api.sessions.begin() as session:
        assert await webhooks.record(session, later, DeliveryResult(status=204), None)
    [row] = await deliveries(api)
    assert (row["state"], row["status"], row["attempts"]) == ("delivered", 204, 2)


async def test_a_result_that_arrives_after_the_message_was_claimed_again_changes_nothing(api: ApiApp) -> None:
    answered = [asyncio.Event(), asyncio.Event()]

    class Held(WebhookReceiver):
        async def wait(self) -> None:
            await answered[len(self.received) - 1].wait()

    receiver = Held(500, 204)
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        await end_task(api)
        await until(lambda: receiver.count(1))
        async with api.sessions.begin() as session:
            await session.execute(_expire())  # as if the process had stalled
        await until(lambda: receiver.count(2))
        answered[0].set()
        await asyncio.sleep(0.5)  # the failure arrives, and starts nothing
        answered[1].set()
        [row] = await settled(api)
    assert len(receiver.received) == 2, "the failure of the first attempt starts no third one beside the second"
    assert (row["state"], row["status"], row["attempts"]) == ("delivered", 204, 2)


def _expire() -> Update:
    return update(tables.WebhookDelivery).values(lease_until=func.clock_timestamp())


async def test_messages_are_deleted_some_time_after_they_were_delivered_or_given_up(api: ApiApp) -> None:
    async def states() -> list[str]:
        return [each["state"] for each in await deliveries(api)]

    async def one_is_left() -> bool:
        return len(await states()) == 1

    receiver = WebhookReceiver(410)
    async with receiver.listening() as url, sending(api.sessions):
        await set_webhook(api, url)
        for _ in range(2):
            await end_task(api)
            await settled(api)
    await end_task(api)
    assert await states() == ["pending", "delivered", "failed"]
    async with sending(api.sessions, WebhookOptions(delays=(60,), keep_seconds=0)):
        await until(one_is_left)
    assert await states() == ["pending"]
