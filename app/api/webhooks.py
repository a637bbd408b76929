"""Routes for messages to webhooks: which were delivered, and sending them again."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.params import FromPath, QueryParameter

from app.api.access import Caller, Db
from app.api.columns import columns
from app.api.console_links import ConsoleLinks
from app.api.problem import problems
from app.api.project_access import project_filter, project_names
from app.api.validation import Cursor, Limit, ProjectName
from app.db import tables, webhooks
from app.db.tables import DeliveryState
from app.records import Json


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """A message to the project's webhook, about a task or a release. `status` and `error` are those of the latest
    attempt.
    """

    id: UUID  #: with `msg_`, and without hyphens, it is the message's `webhook-id`
    project: str
    task_id: UUID | None
    release_id: UUID | None
    event: str
    message: Json  #: the body that is sent
    state: DeliveryState
    attempt: int = msgspec.field(name="attempts")
    status: int | None
    error: str | None
    created_at: datetime
    next_at: datetime | None = msgspec.field(name="next_attempt_at")
    finished_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.WebhookDelivery, project: str) -> Self:
        pending = row.state is DeliveryState.PENDING
        return cls(
            project=project,
            message=msgspec.json.decode(row.body),
            next_at=row.next_at if pending else None,
            links=ConsoleLinks.to("/console/webhooks", project),
            **columns(row, cls, "project", "message", "next_at", "links"),
        )


class DeliveryPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    deliveries: list[DeliveryView]
    next_cursor: str | None


class WebhookController(Controller):
    path = "/webhooks/deliveries"
    tags = ("Webhooks",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(summary="List messages to webhooks", responses=problems(400, 401, 403, 404))
    async def index(
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        in_state: Annotated[DeliveryState | None, QueryParameter(name="state")] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> DeliveryPage:
        """Newest first."""
        only = await project_filter(session, access, project)
        page = await webhooks.page(session, only, in_state, cursor=cursor, limit=limit)
        names = await project_names(session)
        return DeliveryPage([DeliveryView.of(row, names[row.project_id]) for row in page.items], page.cursor)

    @post(
        "/{delivery_id:uuid}/resend",
        status_code=202,
        summary="Send a message again",
        responses=problems(400, 401, 403, 404, 409),
    )
    async def resend(self, delivery_id: FromPath[UUID], session: Db, access: Caller) -> DeliveryView:
        """With the same id and body, to the address that the project has now. 409 while it is pending."""
        await webhooks.get(session, delivery_id, access.project_id)
        row = await webhooks.resend(session, delivery_id)
        await session.commit()
        names = await project_names(session)
        return DeliveryView.of(row, names[row.project_id])
