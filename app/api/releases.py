"""Which weights serve a project. Read only: releases are made by training and promoted by the gate."""

from datetime import datetime
from uuid import UUID

import msgspec
from litestar import Controller, get

from app.api.access import Asking, Db, find_project
from app.api.fields import ProjectName
from app.api.problem import problems
from app.db import models, releases


class ReleaseView(msgspec.Struct, frozen=True):
    id: UUID
    number: int
    state: models.ReleaseState
    model: str
    created_at: datetime


class ReleaseController(Controller):
    path = "/releases"
    tags = ("Releases",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="List releases", responses=problems(400, 401, 403, 404))
    async def index(self, session: Db, access: Asking, project: ProjectName = None) -> list[ReleaseView]:
        """Newest first. One of them is `active`: new tasks are pinned to it when they begin."""
        owner = await find_project(session, access, project)
        rows = await releases.of_project(session, owner.id)
        return [ReleaseView(row.id, row.number, row.state, row.model, row.created_at) for row in rows]
