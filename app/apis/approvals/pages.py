"""Approvals: the calls that wait for a person, with their arguments, and what was decided about others."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.params import FromPath, FromQuery

from app.apis.approvals import store as approvals
from app.apis.approvals.routes import DECISIONS, DecisionRequest, view_approval
from app.apis.approvals.store import ApprovalFilter
from app.db.tables import ApprovalState
from app.web.access import Db
from app.web.forms import read_form
from app.web.pages import Visitor, after_change, page, visit_project
from app.web.problem import AnyRequest

_WAITING, _DECIDED = 20, 50


class ApprovalPages(Controller):
    path = "/approvals"
    opt = {"scope": "approvals"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db, cursor: FromQuery[str | None] = None) -> Response[str]:
        """What waits, with all that a decision needs, and below it what was asked before."""
        project = visit.project.id
        only = ApprovalFilter(project_id=project, state=ApprovalState.WAITING)
        waiting = await approvals.page(session, only, limit=_WAITING)
        asked = await approvals.page(session, ApprovalFilter(project_id=project), cursor=cursor, limit=_DECIDED)
        return page(
            visit,
            "approvals.html",
            waiting=[await view_approval(session, row) for row in waiting.items],
            more=waiting.cursor is not None,
            decided=[row for row in asked.items if row.state is not ApprovalState.WAITING],
            cursor=asked.cursor,
        )

    @get("/{approval_id:uuid}")
    async def show(self, approval_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[str]:
        row = await approvals.get(session, approval_id, visit.access.project_id)
        visit = await visit_project(visit, session, row.project_id)
        return page(visit, "approval.html", approval=await view_approval(session, row))

    @post("/{approval_id:uuid}")
    async def decide(
        self, approval_id: FromPath[UUID], request: AnyRequest, visit: Visitor, session: Db
    ) -> Response[Any]:
        """Raises ConflictError if somebody was faster, or it has expired."""
        row = await approvals.get(session, approval_id, visit.access.project_id)
        visit = await visit_project(visit, session, row.project_id)
        data = (await read_form(request, DecisionRequest)).given()
        decided = await approvals.decide(session, row, DECISIONS[data.decision], visit.access.actor, data.reason)
        await session.commit()
        return after_change(visit.url("/console/approvals"), f"{decided.state}: the call of {decided.api}")
