"""Which weights serve a project. Training makes releases and the gate promotes them; here people may, too."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Access, Asking, Db, find_project
from app.api.fields import ProjectName
from app.api.parts import Loader
from app.api.problem import problems
from app.db import models, releases
from app.errors import NotFoundError
from app.records import Json

Insist = Annotated[
    bool, QueryParameter(name="rejected_too", description="true activates also a release that the gate rejected")
]
_READ = problems(400, 401, 403, 404)


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """`evidence` is what the gate found; `activated_at` is when it last began to serve."""

    id: UUID
    number: int
    state: models.ReleaseState
    model: str
    training_run_id: UUID | None
    evidence: dict[str, Json] | None
    created_at: datetime
    activated_at: datetime | None

    @classmethod
    def of(cls, row: models.Release) -> Self:
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__})


class ReleaseController(Controller):
    path = "/releases"
    tags = ("Releases",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="List releases", responses=_READ)
    async def index(self, session: Db, access: Asking, project: ProjectName = None) -> list[ReleaseView]:
        """Newest first. One of them is `active`: new tasks are pinned to it when they begin."""
        owner = await find_project(session, access, project)
        return [ReleaseView.of(row) for row in await releases.of_project(session, owner.id)]

    @get("/{release_id:uuid}", summary="Show a release", responses=_READ)
    async def show(self, release_id: FromPath[UUID], session: Db, access: Asking) -> ReleaseView:
        """Its weights, the training run that made them, and what the gate found."""
        return ReleaseView.of(await _find(session, access, release_id))

    @post(
        "/{release_id:uuid}/activate",
        status_code=200,
        opt={"scope": "admin"},
        summary="Serve a release",
        responses=problems(400, 401, 403, 404, 409, 503),
    )
    async def activate(
        self,
        release_id: FromPath[UUID],
        session: Db,
        access: Asking,
        loader: NamedDependency[Loader],
        rejected_too: Insist = False,
    ) -> ReleaseView:
        """Every model server has its weights before new tasks are pinned to it; where one of them refuses, nothing
        changes. Tasks under way keep the release they began with. Activating an older release rolls back."""
        release = await _find(session, access, release_id)
        await session.commit()  # no transaction is held while weights are loaded
        await loader.load(release.model)
        row = await releases.activate(session, release.id, rejected_too=rejected_too)
        await session.commit()
        return ReleaseView.of(row)


async def _find(session: AsyncSession, access: Access, release_id: UUID) -> models.Release:
    """Raises NotFoundError also for a release of a project that the key may not see."""
    release = await releases.get(session, release_id)
    if not access.sees(release.project_id):
        raise NotFoundError(f"no release has the id {release_id}")
    return release
