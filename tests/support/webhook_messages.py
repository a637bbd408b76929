"""Webhooks of a project, the events they are told of, and the messages that are sent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx

from app.apis.calls.network import open_client
from app.db.database import Sessions
from app.db.tables import TaskState
from app.projects.webhooks import WebhookOptions, WebhookSender
from app.tasks import queue
from tests.support.api_app import ApiApp
from tests.support.ledger_project import until
from tests.support.rows import LEASE, task_row
from tests.support.webhook_receiver import SECRET

FAST = WebhookOptions(poll_seconds=0.05, timeout=30, delays=(0.05, 0.05))


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
        claimed = await queue.claim(session, "me", LEASE)
        assert claimed is not None
        await queue.finish(session, task.id, "me", queue.TaskOutcome(state=state, score=0.5))
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
