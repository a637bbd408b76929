"""Routes for the audit log: who changed what serves and what is permitted, and when."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.params import FromQuery, QueryParameter

from app.api.access import Caller, Db
from app.api.columns import columns
from app.api.console_links import ConsoleLinks
from app.api.problem import problems
from app.api.project_access import project_filter
from app.api.validation import Cursor, Limit, ProjectName
from app.db import audit, tables
from app.records import Json


class AuditEntryView(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` of an activation is its swap report: hashes, seconds and measurements of each model server, and the
    servers that were unavailable (`absent`). An entry `restored` follows once they have loaded the release.
    """

    id: UUID
    project: str | None  #: which may be deleted; null: it concerns all
    release_id: UUID | None
    actor: str  #: "key <name>", "gate", "canary" or "server"
    action: tables.AuditAction
    detail: dict[str, Json]
    created_at: datetime

    @classmethod
    def of(cls, row: tables.AuditEntry) -> Self:
        return cls(**columns(row, cls))


class AuditPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    entries: list[AuditEntryView]
    next_cursor: str | None
    links: ConsoleLinks


class AuditController(Controller):
    path = "/audit"
    tags = ("Releases",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(summary="List audit entries", responses=problems(400, 401, 403, 404))
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        release_id: FromQuery[UUID | None] = None,
        action: FromQuery[tables.AuditAction | None] = None,
        actor: Annotated[str, QueryParameter(description="a part of the actor's name")] = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> AuditPage:
        """Activations, refused activations, starts and ends of canaries, ends of watches, model servers that
        loaded the active release again, decided approvals, changes of settings, secrets and skills' states, and
        created or revoked keys and projects. Entries never change, and stay when their project is deleted: without
        `project`, a key for all projects sees those too.
        """
        only = await project_filter(session, access, project)
        actions = () if action is None else (action,)
        page = await audit.page(
            session, only, release_id=release_id, actions=actions, actor=actor, cursor=cursor, limit=limit
        )
        links = ConsoleLinks.to("/console/audit", project) if project else ConsoleLinks("/console/audit?of=all")
        return AuditPage([AuditEntryView.of(row) for row in page.items], page.cursor, links)
