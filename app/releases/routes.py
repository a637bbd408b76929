"""Routes for releases. Training proposes them and the gate promotes them; here people can do both."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
import structlog
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from app.base.errors import AdapterError, InvalidError, NotFoundError, public_text
from app.base.values import Json
from app.db import adapters as adapter_rows
from app.db import hosted_models, releases, tables
from app.hot_swap.adapter_directory import AdapterDirectory
from app.projects import audit
from app.projects.authorization import find_project
from app.release.activation import ActivationChanges, changes_of
from app.release.manifest import SkillsMode
from app.release.promote import Promoter
from app.web.access import Caller, Db
from app.web.fields import ConsoleLinks, Name, ProjectName, Text, columns
from app.web.problem import problems

log = structlog.get_logger(__name__)

AllowRejected = Annotated[
    bool, QueryParameter(description="serve it even if its weights were rejected; the audit log records it")
]
SkillsQuery = Annotated[
    SkillsMode,
    QueryParameter(description="`restore` the skills of a release that served before, or `keep` the present ones"),
]
_READ = problems(400, 401, 403, 404)


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either an `adapter`, by the name of its directory, which is the hash of its content, or a `hosted` model, by
    its name. `reason` is stored in `evidence`.
    """

    adapter: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}(?!\n)$")] | None = None
    hosted: Name | None = None
    project: str | None = None
    reason: Text | None = None


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release: weights (`model`), skills, tools and prompt, each identified by its hash; a hosted model by name.

    `evidence` is the result of the gate, of the release as a canary, and of its watch; `activated_at` is when the
    release last became active. While it is `watched`, it is compared with the release before.
    """

    id: UUID
    number: int
    state: tables.ReleaseState
    model: str
    training_run_id: UUID | None
    skills: str | None = msgspec.field(name="skills_hash")
    tools: str | None = msgspec.field(name="tools_hash")
    prompt: str | None = msgspec.field(name="prompt_hash")
    canary_percent: float | None
    watched: bool
    evidence: dict[str, Json] | None
    created_at: datetime
    activated_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.Release) -> Self:
        links = ConsoleLinks.of("releases", row.id)
        own = columns(row, cls, "model", "watched", "links")
        return cls(model=row.policy, watched=row.watched_against is not None, links=links, **own)


class ActivatedView(ReleaseView, frozen=True, kw_only=True):
    """A release that is active now, and what its activation changed."""

    changes: ActivationChanges

    @classmethod
    def after(cls, row: tables.Release, changes: ActivationChanges) -> Self:
        view = ReleaseView.of(row)
        return cls(changes=changes, **{name: getattr(view, name) for name in view.__struct_fields__})


class ReleaseController(Controller):
    path = "/releases"
    tags = ("Releases",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="List releases", responses=_READ)
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[ReleaseView]:
        """Newest first. Exactly one is `active`: tasks are pinned to it when they start."""
        owner = await find_project(session, access, project)
        return [ReleaseView.of(row) for row in await releases.of_project(session, owner.id)]

    @get("/{release_id:uuid}", summary="Show a release", responses=_READ)
    async def show(self, release_id: FromPath[UUID], session: Db, access: Caller) -> ReleaseView:
        """Its weights, the training run that produced them, and the result of the gate."""
        return ReleaseView.of(await releases.get(session, release_id, access.project_id))

    @post(
        summary="Propose an adapter or a hosted model",
        opt={"scope": "admin"},
        responses=problems(400, 401, 403, 404),
    )
    async def propose(
        self,
        data: JSONBody[ReleaseRequest],
        session: Db,
        access: Caller,
        adapters: NamedDependency[AdapterDirectory],
    ) -> ReleaseView:
        """Creates a candidate from a hosted model, or from an adapter in the adapter directory, named by its
        content hash. The shapes of an adapter are checked against the base model; that it was trained on this
        model cannot be checked. The candidate serves once it is activated, or as a canary; an adapter that was
        rejected in another release of the project needs `allow_rejected` for that. An adapter belongs to the
        project whose run made it or whose key first proposed it; one that a key for all projects added is for
        all."""
        if (data.adapter is None) == (data.hosted is None):
            raise InvalidError("give either `adapter` or `hosted`")
        project = await find_project(session, access, data.project)
        if data.hosted is not None:
            release = await hosted_models.propose(session, project.id, data.hosted)
            return await _proposed(session, access, release, data)
        assert data.adapter is not None
        await session.commit()  # no transaction is held while files are read
        rank = await _read(adapters, data.adapter)
        await adapters.publish(data.adapter)
        row = await adapter_rows.put(
            session, data.adapter, base=adapters.base, rank=rank, project_id=access.project_id
        )
        if row.project_id is not None and not access.sees(row.project_id):
            raise NotFoundError(f"the project {project.name} has no adapter {row.hash}")
        if row.base != adapters.base:
            raise InvalidError(f"adapter {row.hash} was trained on {row.base}, but {adapters.base} is served")
        release = await releases.propose(session, project.id, data.adapter)
        return await _proposed(session, access, release, data)

    @get("/{release_id:uuid}/activate", summary="Show what activating a release would change", responses=_READ)
    async def changes(
        self, release_id: FromPath[UUID], session: Db, access: Caller, skills: SkillsQuery = "restore"
    ) -> ActivationChanges:
        """Activating it now changes exactly this: weights, skills, API documents."""
        release = await releases.get(session, release_id, access.project_id)
        return await changes_of(session, release, await releases.find_active(session, release.project_id), skills)

    @post(
        "/{release_id:uuid}/activate",
        status_code=200,
        opt={"scope": "admin"},
        summary="Activate a release",
        responses=problems(400, 401, 403, 404, 409, 503),
    )
    async def activate(
        self,
        release_id: FromPath[UUID],
        session: Db,
        access: Caller,
        promoter: NamedDependency[Promoter],
        allow_rejected: AllowRejected = False,
        skills: SkillsQuery = "restore",
    ) -> ActivatedView:
        """New tasks are pinned to it once every model server has proven that it has the weights; if one refuses,
        nothing changes. Running tasks keep their release. Activating an older release rolls back weights, skills
        and tools: `changes` says what it moved."""
        await releases.get(session, release_id, access.project_id)
        await session.commit()  # no transaction is held while weights are loaded
        stated = [ActivationChanges()]  # stays so for a release that is active already
        row = await promoter.activate(
            release_id,
            access.actor,
            allow_rejected=allow_rejected,
            skills=skills,
            on_changes=stated.append,
        )
        return ActivatedView.after(row, stated[-1])


async def _proposed(session: Db, access: Caller, release: tables.Release, data: ReleaseRequest) -> ReleaseView:
    if data.reason:
        await releases.record_evidence(session, release.id, {"reason": data.reason})
    about = (release.project_id, release.id, access.actor, tables.AuditAction.RELEASE_PROPOSED)
    await audit.add(session, *about, {"model": release.policy, "reason": data.reason})
    await session.commit()
    return ReleaseView.of(release)


async def _read(adapters: AdapterDirectory, name: str) -> int:
    """The adapter's rank. Raises InvalidError if it must not be served."""
    try:
        return (await adapters.verified(name)).rank
    except AdapterError as error:
        log.warning("a proposed adapter is refused", adapter=name, cause=str(error))
        raise InvalidError(public_text(error)) from error
