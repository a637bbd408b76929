"""Routes for hosted models: endpoints of chat completions that a project may use. Keys are never shown."""

from datetime import datetime
from typing import Annotated, Any, Self

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.servers import has_name, same_origin
from app.base.errors import ConflictError, EngineError, InvalidError
from app.base.fields import Name, Text, columns
from app.db import tables
from app.db.database import keys_of
from app.db.tables import AuditAction
from app.engine.hosted.client import Abilities
from app.engine.hosted.probe import probe
from app.projects import audit
from app.projects.authorization import find_project
from app.projects.settings import Limits
from app.releases import hosted_models
from app.releases.hosted_models import HostedModels
from app.tasks.experts import ExpertTasks, ExpertTasksRequest, do_again
from app.web.access import Access, Caller, Db
from app.web.fields import ConsoleLinks, ProjectName
from app.web.problem import CHANGE, READ, problems

Url = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^https?://[^\s?#\x00]+(?!\n)$",
        max_length=2000,
        description="a server, whose API is expected under /v1, or the base URL of an API",
    ),
]
ModelName = Annotated[
    Text, msgspec.Meta(min_length=1, max_length=300, description="of the model, at the endpoint")
]
Key = Annotated[Text, msgspec.Meta(min_length=1, max_length=10_000, description="never shown again")]
_PATIENCE = 15.0  # seconds for an endpoint that is busy, or loads its model
Price = Annotated[float, msgspec.Meta(ge=0, le=10**9)]


class HostedModelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices are those of a million tokens, in and out, in any one currency."""

    name: Name
    url: Url
    model: ModelName
    key: Key | None = None
    price_in: Price | None = None
    price_out: Price | None = None
    project: str | None = None


class HostedModelPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left out stays; null removes a key or a price."""

    url: Url | UnsetType = UNSET
    model: ModelName | UnsetType = UNSET
    key: Key | UnsetType | None = UNSET
    price_in: Price | UnsetType | None = UNSET
    price_out: Price | UnsetType | None = UNSET


class HostedModelView(msgspec.Struct, frozen=True, kw_only=True):
    """`failure` is why the latest request or probe failed; null: it did not. `remark` says that the endpoint lists
    other models alone, so that one of them may answer in its place.
    """

    name: str
    project: str
    url: str
    model: str
    has_key: bool
    price_in: float | None
    price_out: float | None
    abilities: Abilities
    probed_at: datetime | None
    failure: str | None
    remark: str | None
    created_at: datetime
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.HostedModel, project: str) -> Self:
        return cls(
            **columns(row, cls, "project", "has_key", "abilities", "remark", "links"),
            project=project,
            has_key=row.key is not None,
            abilities=(can := msgspec.convert(row.abilities or {}, Abilities)),
            remark=can.remark,
            links=ConsoleLinks.to("/console/models", project),
        )


class HostedModelController(Controller):
    path = "/hosted-models"
    tags = ("Hosted models",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(summary="Add a hosted model", responses=CHANGE)
    async def add(
        self,
        data: JSONBody[HostedModelRequest],
        session: Db,
        access: Caller,
        hosted_endpoints: NamedDependency[HostedModels],
    ) -> HostedModelView:
        """Probes the endpoint with a few small requests, for up to 30 s, and stores the model with what it can do.
        An endpoint that does not answer, or refuses the key or the model, is an error with its own reason."""
        owner = await find_project(session, access, data.project)
        row = await add_hosted(session, access, owner, data, hosted_endpoints)
        return HostedModelView.of(row, owner.name)

    @get(summary="List hosted models", responses=READ)
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[HostedModelView]:
        """Sorted by name."""
        owner = await find_project(session, access, project)
        return [HostedModelView.of(row, owner.name) for row in await hosted_models.of_project(session, owner.id)]

    @get("/{name:str}", summary="Show a hosted model", responses=READ)
    async def show(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None
    ) -> HostedModelView:
        owner = await find_project(session, access, project)
        return HostedModelView.of(await hosted_models.get(session, owner.id, name), owner.name)

    @patch("/{name:str}", summary="Change a hosted model", responses=CHANGE)
    async def change(
        self,
        name: FromPath[str],
        data: JSONBody[HostedModelPatch],
        session: Db,
        access: Caller,
        hosted_endpoints: NamedDependency[HostedModels],
        project: ProjectName = None,
    ) -> HostedModelView:
        """Another URL, model or key is probed first. For another origin the key has to be sent again. Once a
        release was made with it, its model stays: add another one under another name."""
        owner = await find_project(session, access, project)
        row = await change_hosted(session, access, owner, name, data, hosted_endpoints)
        return HostedModelView.of(row, owner.name)

    @post("/{name:str}/probe", status_code=200, summary="Probe a hosted model", responses=CHANGE)
    async def probe(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        hosted_endpoints: NamedDependency[HostedModels],
        project: ProjectName = None,
    ) -> HostedModelView:
        """Finds out again what it can do. `failure` says what is wrong."""
        owner = await find_project(session, access, project)
        return HostedModelView.of(await probe_hosted(session, access, owner, name, hosted_endpoints), owner.name)

    @post(
        "/{name:str}/tasks",
        status_code=202,
        summary="Let a hosted model do tasks again",
        responses=problems(400, 401, 403, 404, 429),
    )
    async def do_tasks(
        self,
        name: FromPath[str],
        data: JSONBody[ExpertTasksRequest],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
        project: ProjectName = None,
    ) -> ExpertTasks:
        """Queues tasks like them, after all others, for a candidate release with the model. They only read: one
        that wants to change something fails. Left out are those that the model has worked on. What they answer is
        scored as that of any task; runs of kind `sft` learn from successes."""
        owner = await find_project(session, access, project)
        return await do_again(session, access, owner, name, data, limits)

    @delete("/{name:str}", summary="Remove a hosted model", responses=CHANGE)
    async def remove(self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None) -> None:
        """Refused while a release serves with it, or a task runs on it or waits for it. Its key is deleted; its
        name stays with its releases."""
        owner = await find_project(session, access, project)
        await remove_hosted(session, access, owner, name)


async def add_hosted(
    session: AsyncSession, access: Access, owner: tables.Project, data: HostedModelRequest, hosted: HostedModels
) -> tables.HostedModel:
    """Audited. Raises InvalidError with the endpoint's reason, ConflictError for a name that is taken."""
    trusted = access.project_id is None
    await session.commit()  # no transaction waits for the endpoint
    found = await _probed(hosted, data.url, data.model, data.key or "", trusted=trusted)
    given = {"url": data.url, "model": data.model, "price_in": data.price_in, "price_out": data.price_out}
    row = await hosted_models.add(
        session, owner.id, data.name, data.key, trusted=trusted, **given, **hosted_models.probed(found)
    )
    await _record(session, access, row, AuditAction.HOSTED_ADDED, hosted_models.about(row))
    return row


async def change_hosted(
    session: AsyncSession,
    access: Access,
    owner: tables.Project,
    name: str,
    data: HostedModelPatch,
    hosted: HostedModels,
) -> tables.HostedModel:
    """Audited. Raises as `add_hosted`, and NotFoundError."""
    before = await hosted_models.get(session, owner.id, name)
    key = hosted.key_of(before, keys_of(session)) if data.key is UNSET else data.key or ""
    seen = _identity(before)
    changed: dict[str, Any] = {
        field: value for field in data.__struct_fields__ if (value := getattr(data, field)) is not UNSET
    }
    own = before.key is not None  # else the key is the settings', and belongs to what they name
    sends_key = bool(key) and data.key is UNSET
    if sends_key and data.url not in (UNSET, before.url) and not (own and same_origin(str(data.url), before.url)):
        raise InvalidError(f"url: {data.url} is another server than {before.url}: send its key as well, or null")
    if sends_key and data.model not in (UNSET, before.model) and not own:
        raise InvalidError(f"model: the key for {before.model} is that of the settings: send one as well, or null")
    if data.url is not UNSET and data.url != before.url:
        changed["trusted"] = access.project_id is None
    if {"url", "model", "key"} & changed.keys():
        url, model, trusted = (changed.get(field, getattr(before, field)) for field in ("url", "model", "trusted"))
        await session.commit()
        changed |= hosted_models.probed(await _probed(hosted, url, model, key, trusted=trusted))
    row = await _still(session, owner, name, seen)
    was = hosted_models.about(row)
    await hosted_models.change(session, row, **changed)
    detail = {"name": name, "before": was, "after": hosted_models.about(row)}
    if data.key is not UNSET:
        detail["key"] = "removed" if data.key is None else "stored"
    await _record(session, access, row, AuditAction.HOSTED_CHANGED, detail)
    return row


async def probe_hosted(
    session: AsyncSession, access: Access, owner: tables.Project, name: str, hosted: HostedModels
) -> tables.HostedModel:
    """Notes what it finds, or why it failed. Audited if that changes what was known. Raises NotFoundError, and
    ConflictError if the model was changed meanwhile.
    """
    before = await hosted_models.get(session, owner.id, name)
    key, seen = hosted.key_of(before, keys_of(session)), _identity(before)
    await session.commit()
    try:
        found = hosted_models.probed(await _probed(hosted, before.url, before.model, key, trusted=before.trusted))
    except InvalidError as error:
        found = {"failure": str(error)}
    row = await _still(session, owner, name, seen)
    await hosted_models.change(session, row, **found)
    detail = {"name": name, "probe": row.failure or row.abilities}
    await _record(session, access, row, AuditAction.HOSTED_CHANGED, detail)
    return row


async def remove_hosted(session: AsyncSession, access: Access, owner: tables.Project, name: str) -> None:
    """Audited. Raises NotFoundError, and ConflictError while it is in use."""
    row = await hosted_models.delete(session, owner.id, name)
    await audit.add(session, owner.id, None, access.actor, AuditAction.HOSTED_REMOVED, hosted_models.about(row))
    await session.commit()


def _identity(row: tables.HostedModel) -> tuple[str, str, str | None]:
    """What a probe is about: its result holds, and its key is meant, for nothing else."""
    return row.url, row.model, row.key


async def _still(
    session: AsyncSession, owner: tables.Project, name: str, seen: tuple[str, str, str | None]
) -> tables.HostedModel:
    """The model, locked. Raises NotFoundError, and ConflictError if it is not what was seen before the probe."""
    row = await hosted_models.get(session, owner.id, name, lock=True)
    if _identity(row) != seen:
        raise ConflictError(f"the model {name} was changed by others meanwhile: look at it, and try again")
    return row


async def _probed(hosted: HostedModels, url: str, model: str, key: str, *, trusted: bool) -> dict[str, Any]:
    """The abilities. Raises InvalidError with the endpoint's reason."""
    if has_name(url):
        raise InvalidError("url: it holds a name or a password, which others would see: send `key` instead")
    async with hosted.connect(url, model, key, trusted=trusted, patience=_PATIENCE) as client:
        try:
            found: dict[str, Any] = msgspec.to_builtins(await probe(client))
        except EngineError as error:
            raise InvalidError(str(error)) from error
    return found


async def _record(
    session: AsyncSession, access: Access, row: tables.HostedModel, action: AuditAction, detail: dict[str, Any]
) -> None:
    await audit.add(session, row.project_id, None, access.actor, action, detail)
    await session.commit()
    await session.refresh(row)
