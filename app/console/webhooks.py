"""Messages to the project's webhook: which were delivered, and sending them again."""

from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect

from app.api.access import Db
from app.api.webhooks import DeliveryView
from app.console.visit import Visitor, after_change, page, visit_project
from app.db import projects, webhooks
from app.db.tables import DeliveryState
from app.errors import InvalidError

_MESSAGES = 50


class WebhookPages(Controller):
    path = "/webhooks"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(
        self,
        visit: Visitor,
        session: Db,
        in_state: FromQuery[str] = "",
        cursor: FromQuery[str | None] = None,
    ) -> Response[str]:
        project = visit.project
        if in_state not in ("", *DeliveryState):
            raise InvalidError(f"there is no state {in_state!r}: choose one of the list")
        state = DeliveryState(in_state) if in_state else None
        found = await webhooks.page(session, project.id, state, cursor=cursor, limit=_MESSAGES)
        return page(
            visit,
            "webhooks.html",
            webhook=projects.settings_of(project).webhook,
            states=list(DeliveryState),
            deliveries=[DeliveryView.of(row, project.name) for row in found.items],
            cursor=found.cursor,
        )

    @post("/{delivery_id:uuid}/resend")
    async def resend(self, delivery_id: FromPath[UUID], visit: Visitor, session: Db) -> Redirect:
        row = await webhooks.get(session, delivery_id, visit.access.project_id)
        visit = await visit_project(visit, session, row.project_id)
        await webhooks.resend(session, delivery_id)
        await session.commit()
        return after_change(visit.url("/console/webhooks"), f"the message {row.event} is being sent again")
