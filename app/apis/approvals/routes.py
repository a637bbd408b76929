"""Routes for approvals: API calls that wait for a person."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.approvals import store as approvals
from app.apis.approvals.gate import ShownCall
from app.apis.approvals.store import CallBefore
from app.base.fields import Text, columns
from app.base.values import Json
from app.db import tables
from app.db.tables import ApprovalState
from app.projects.authorization import project_filter, project_names
from app.tasks import store as tasks
from app.web.access import Caller, Db
from app.web.fields import ConsoleLinks, Cursor, Limit, ProjectName
from app.web.problem import CHANGE, READ

DECISIONS = {"approve": ApprovalState.APPROVED, "refuse": ApprovalState.REFUSED}


class DecisionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`reason` is kept, and the agent reads it if the call is refused."""

    decision: Literal["approve", "refuse"]
    reason: Annotated[Text, msgspec.Meta(max_length=2_000)] = ""


class ApprovalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An approval in a list. `withdrawn`: its task was cancelled."""

    id: UUID
    project: str
    task_id: UUID
    api: str = msgspec.field(name="operation")
    state: ApprovalState
    created_at: datetime = msgspec.field(name="requested_at")
    expires_at: datetime
    decided_at: datetime | None
    decided_by: str | None
    reason: str
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.Approval, project: str) -> "ApprovalSummary":
        own = columns(row, ApprovalSummary, "project", "links")
        return ApprovalSummary(project=project, links=ConsoleLinks.of("approvals", row.id), **own)


class ApprovalPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    approvals: list[ApprovalSummary]
    next_cursor: str | None


class ApprovalView(ApprovalSummary, frozen=True, kw_only=True):
    """`arguments` are those of the call; only a call with exactly these is made. While it waits, secrets are shown
    by length and origin, and `remarks` name the arguments that hold what an API returned as a secret. Once it is
    decided, all of these are masked. `failure` is why they cannot be read, where the key is missing that they were
    encrypted with: such a call can only be refused. `because` says why the call waits, and `before` are the calls
    that the task made before it."""

    instruction: str  #: of the task
    principal: str
    turn: int
    arguments: dict[str, Json]
    remarks: list[str]
    failure: str | None
    because: str
    before: list[CallBefore]


class ApprovalController(Controller):
    path = "/approvals"
    tags = ("Approvals",)
    opt = {"scope": "approvals"}  # noqa: RUF012

    @get(summary="List approvals", responses=READ)
    async def index(
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        in_state: Annotated[ApprovalState | None, QueryParameter(name="state")] = None,
        task_id: FromQuery[UUID | None] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> ApprovalPage:
        """Newest first."""
        only = approvals.ApprovalFilter(
            project_id=await project_filter(session, access, project), task_id=task_id, state=in_state
        )
        page = await approvals.page(session, only, cursor=cursor, limit=limit)
        names = await project_names(session)
        return ApprovalPage([ApprovalSummary.of(row, names[row.project_id]) for row in page.items], page.cursor)

    @get("/{approval_id:uuid}", summary="Show an approval", responses=READ)
    async def show(self, approval_id: FromPath[UUID], session: Db, access: Caller) -> ApprovalView:
        """The call with its arguments, and the decision if there is one."""
        return await view_approval(session, await approvals.get(session, approval_id, access.project_id))

    @post("/{approval_id:uuid}", status_code=200, summary="Approve or refuse a call", responses=CHANGE)
    async def decide(
        self,
        approval_id: FromPath[UUID],
        data: JSONBody[DecisionRequest],
        session: Db,
        access: Caller,
    ) -> ApprovalView:
        """The task continues at once: an approved call is made, a refused one raises PermissionError with the
        reason in the agent's code. The first decision counts; after it, or after the time-out, 409. The audit log
        records it.
        """
        row = await approvals.get(session, approval_id, access.project_id)
        state = DECISIONS[data.decision]
        decided = await approvals.decide(session, row, state, access.actor, data.reason)
        await session.commit()
        return await view_approval(session, decided)


async def view_approval(session: AsyncSession, row: tables.Approval) -> ApprovalView:
    """With the call and the task that waits for it."""
    names, task = await project_names(session), await tasks.get(session, row.task_id)
    because, before = await approvals.before(session, row)
    return ApprovalView(
        instruction=task.instruction,
        principal=task.principal,
        turn=row.turn,
        because=because,
        before=before,
        **columns(ApprovalSummary.of(row, names[row.project_id]), ApprovalSummary),
        **columns(approvals.shown(session, row), ShownCall),
    )
