"""Messages to webhooks: written together with the event they are about, and sent by any process."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
from sqlalchemy import delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.clock import from_now
from app.db.database import keys_of
from app.db.due_queue import DueQueue
from app.db.page import Page, read_page
from app.db.tables import DeliveryState
from app.errors import ConflictError, NotFoundError
from app.project.project_settings import ProjectSettings
from app.project.webhook import WebhookEvent, signing_key
from app.records import Json
from app.security.visible_text import visible_value

_delivery = tables.WebhookDelivery
_PRUNED_AT_ONCE = 1_000

QUEUE = DueQueue(_delivery, _delivery.state == DeliveryState.PENDING, "claim a webhook's message")


class WebhookTarget(msgspec.Struct, frozen=True):
    """Where the messages of a project go, and the key that signs them."""

    url: str
    key: bytes


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one attempt. Without an error the message was delivered."""

    status: int | None = None
    error: str | None = None
    final: bool = False  # sending it again is pointless


async def enqueue(
    session: AsyncSession,
    project_id: UUID,
    task_id: UUID | None,
    event: WebhookEvent,
    data: dict[str, Json],
    *,
    release_id: UUID | None = None,
) -> None:
    """Store a message if the project's webhook wants the event. It is sent once this transaction is committed.

    The event is one of a task or of a release.
    """
    query = select(tables.Project.name, tables.Project.settings).where(tables.Project.id == project_id)
    project = (await session.execute(query)).one()
    webhook = msgspec.convert(project.settings, ProjectSettings).webhook
    if webhook is None or event not in webhook.events:
        return
    about = {"task_id": task_id, "release_id": release_id}
    named = {name: str(value) for name, value in about.items() if value is not None}
    shown = {"project": project.name, **named, **data}
    message = {"type": event, "timestamp": datetime.now(UTC).isoformat(), "data": visible_value(shown)}
    body = msgspec.json.encode(message).decode()
    session.add(_delivery(project_id=project_id, event=event, body=body, **about))
    await session.flush()


async def target(session: AsyncSession, project_id: UUID) -> WebhookTarget | None:
    """None if the project has no webhook any more. Raises SettingError if its secret cannot be decrypted here."""
    project = tables.Project
    query = select(project.settings, project.webhook_secret).where(project.id == project_id)
    row = (await session.execute(query)).one_or_none()
    webhook = msgspec.convert(row.settings, ProjectSettings).webhook if row else None
    if row is None or webhook is None or row.webhook_secret is None:
        return None
    return WebhookTarget(webhook.url, signing_key(keys_of(session).decrypt(row.webhook_secret)))


async def record(
    session: AsyncSession, row: tables.WebhookDelivery, result: DeliveryResult, retry_in: float | None
) -> bool:
    """Record an attempt: delivered, to be repeated in some seconds, or failed. False, and nothing is written: the
    message was claimed again."""
    owner, mine = row.owner or "", QUEUE.same(row)
    values = {"status": result.status, "error": result.error}
    if result.error is None:
        change = QUEUE.finish(owner, mine, state=DeliveryState.DELIVERED, **values)
    elif result.final or retry_in is None:
        change = QUEUE.finish(owner, mine, state=DeliveryState.FAILED, **values)
    else:
        change = QUEUE.hand_back(owner, mine, next_at=from_now(retry_in), **values)
    return await session.scalar(change.returning(_delivery.id)) is not None


async def prune(session: AsyncSession, keep_seconds: float) -> bool:
    """Delete some messages that were delivered or given up longer ago. Returns whether there may be more."""
    limit = select(from_now(-keep_seconds)).scalar_subquery()  # of which the index is used
    old = select(_delivery.id).where(_delivery.finished_at < limit).limit(_PRUNED_AT_ONCE)
    which = _delivery.id.in_(old.with_for_update(skip_locked=True))
    deleted = await session.scalars(delete(_delivery).where(which).returning(_delivery.id))
    return len(deleted.all()) == _PRUNED_AT_ONCE


async def get(session: AsyncSession, delivery_id: UUID, project_id: UUID | None = None) -> tables.WebhookDelivery:
    """Raises NotFoundError also for one of another project than the one given."""
    row = await session.get(_delivery, delivery_id, populate_existing=True)
    if row is None or project_id not in (None, row.project_id):
        raise NotFoundError(f"no delivery has the id {delivery_id}; GET /v1/webhooks/deliveries lists them")
    return row


async def page(
    session: AsyncSession,
    project_id: UUID | None,
    state: DeliveryState | None,
    *,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[tables.WebhookDelivery]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_delivery)
    if project_id is not None:
        query = query.where(_delivery.project_id == project_id)
    if state is not None:
        query = query.where(_delivery.state == state)
    return await read_page(session, query, _delivery, cursor, limit)


async def resend(session: AsyncSession, delivery_id: UUID) -> tables.WebhookDelivery:
    """Send a message again, with all attempts anew. Raises ConflictError if it has yet to be sent."""
    again = (
        update(_delivery)
        .where(_delivery.id == delivery_id, _delivery.state != DeliveryState.PENDING)
        .values(state=DeliveryState.PENDING, attempt=0, next_at=func.clock_timestamp(), finished_at=None)
    )
    row: tables.WebhookDelivery | None = await session.scalar(
        again.returning(_delivery).execution_options(populate_existing=True)
    )
    if row is None:
        raise ConflictError(f"delivery {delivery_id} is pending already: it will be sent")
    return row
