"""What serves a project. Training makes releases and the gate promotes them; here people may, too."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Access, Caller, Db, find_project
from app.api.problem import problems
from app.api.validation import ProjectName, Text
from app.db import adapters as known
from app.db import models, releases
from app.errors import AdapterError, InvalidError, NotFoundError
from app.hot_swap.adapter_directory import AdapterDirectory
from app.records import Json
from app.release.manifest import Skills
from app.release.promote import Promoter

AllowRejected = Annotated[
    bool, QueryParameter(name="rejected_too", description="true activates also a release that the gate rejected")
]
SkillsMode = Annotated[
    Skills,
    QueryParameter(description="`restore` gives a release that served before its skills back, `keep` does not"),
]
_READ = problems(400, 401, 403, 404)


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`adapter` is the name of its directory: the hash of what is in it. `reason` is kept in its evidence."""

    adapter: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    project: str | None = None
    reason: Text | None = None


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release is a unit: weights, skills, tools and prompt, each by its hash. `evidence` is what the gate found;
    `activated_at` is when it last began to serve."""

    id: UUID
    number: int
    state: models.ReleaseState
    model: str
    training_run_id: UUID | None
    skills: str | None
    tools: str | None
    prompt: str | None
    canary_percent: float | None
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
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[ReleaseView]:
        """Newest first. One of them is `active`: new tasks are pinned to it when they begin."""
        owner = await find_project(session, access, project)
        return [ReleaseView.of(row) for row in await releases.of_project(session, owner.id)]

    @get("/{release_id:uuid}", summary="Show a release", responses=_READ)
    async def show(self, release_id: FromPath[UUID], session: Db, access: Caller) -> ReleaseView:
        """Its weights, the training run that made them, and what the gate found."""
        return ReleaseView.of(await _find(session, access, release_id))

    @post(summary="Propose an adapter", opt={"scope": "admin"}, responses=problems(400, 401, 403, 404))
    async def propose(
        self,
        data: JSONBody[ReleaseRequest],
        session: Db,
        access: Caller,
        adapters: NamedDependency[AdapterDirectory],
    ) -> ReleaseView:
        """A candidate with weights that lie in the adapter directory under the hash of their content, and have the
        shapes of the base model: that they were trained on it is for you to know. It serves when it is activated,
        or as a canary."""
        project = await find_project(session, access, data.project)
        await session.commit()  # no transaction is held while files are read
        rank = await _read(adapters, data.adapter)
        await adapters.publish(data.adapter)
        row = await known.put(session, data.adapter, base=adapters.base, rank=rank)
        if row.base != adapters.base:
            raise InvalidError(f"adapter {row.hash} was trained on {row.base}, but {adapters.base} is served")
        release = await releases.propose(session, project.id, data.adapter)
        if data.reason:
            await releases.note(session, release.id, {"reason": data.reason})
        await session.commit()
        return ReleaseView.of(release)

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
        access: Caller,
        promoter: NamedDependency[Promoter],
        rejected_too: AllowRejected = False,
        skills: SkillsMode = "restore",
    ) -> ReleaseView:
        """Every model server has its weights, and has proven it, before new tasks are pinned to it; where one of
        them refuses, nothing changes. Tasks under way keep the release they began with. Activating an older
        release rolls back: weights, skills and tools."""
        await _find(session, access, release_id)
        await session.commit()  # no transaction is held while weights are loaded
        row = await promoter.activate(release_id, access.actor, rejected_too=rejected_too, skills=skills)
        return ReleaseView.of(row)


async def _read(adapters: AdapterDirectory, name: str) -> int:
    """Its rank. Raises InvalidError for what must not be served."""
    try:
        return (await adapters.verified(name)).rank
    except AdapterError as error:
        raise InvalidError(str(error)) from error


async def _find(session: AsyncSession, access: Access, release_id: UUID) -> models.Release:
    """Raises NotFoundError also for a release of a project that the key may not see."""
    release = await releases.get(session, release_id)
    if not access.sees(release.project_id):
        raise NotFoundError(f"no release has the id {release_id}")
    return release
