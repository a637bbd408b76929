"""Routes for projects, which isolate APIs, skills, tasks, releases and keys from each other."""

import asyncio
from datetime import datetime
from typing import Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Access, Caller, Db
from app.api.api_reading import read_api
from app.api.console_links import ConsoleLinks
from app.api.datasets import delete_files
from app.api.problem import problems
from app.api.project_access import find_project
from app.api.usage_view import UsageView, view_usage
from app.api.validation import Name
from app.apis.document_reader import DocumentReader
from app.apis.reachable import refuse_production
from app.datasets.dataset_store import DatasetStore
from app.db import apis, audit, keys, projects, tables
from app.db import datasets as dataset_table
from app.errors import ForbiddenError
from app.project.project_settings import Limits, ProjectSettings, changed
from app.records import Json
from app.release.first_release import FirstRelease

OPERATORS = {"limits", "weight"}  # settings that share the server out


class ProjectRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class ProjectPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON merge patch of the project's settings; see ProjectSettings."""

    settings: dict[str, Json]


class ProjectView(msgspec.Struct, frozen=True):
    """The page is that of the settings for an administrator, of tasks and success for others."""

    id: UUID
    name: str
    created_at: datetime
    settings: ProjectSettings
    links: ConsoleLinks

    @classmethod
    def of(cls, project: tables.Project, access: Access) -> Self:
        """Only an administrator's key is shown the paths of URLs: they may hold a token."""
        settings = projects.settings_of(project)
        admin = access.allows("admin")
        if not admin:
            settings = msgspec.structs.replace(
                settings,
                webhook=settings.webhook and settings.webhook.masked(),
                verifier=settings.verifier and settings.verifier.masked(),
                staging={name: each.masked() for name, each in settings.staging.items()},
            )
        links = ConsoleLinks.to(f"/console/projects/{project.name}" if admin else "/console", project.name)
        return cls(project.id, project.name, project.created_at, settings, links)


class ProjectController(Controller):
    path = "/projects"
    tags = ("Projects",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(opt={"scope": "admin"}, summary="Create a project", responses=problems(400, 401, 403, 409))
    async def create(
        self,
        data: JSONBody[ProjectRequest],
        session: Db,
        access: Caller,
        first_release: NamedDependency[FirstRelease],
    ) -> ProjectView:
        """Its release 1 is active: the base model, with the adapter that comes with it, if one does."""
        return ProjectView.of(await create_project(session, access, data.name, first_release), access)

    @get(summary="List projects", responses=problems(401, 403))
    async def index(self, session: Db, access: Caller) -> list[ProjectView]:
        """The projects that the key may see, sorted by name."""
        rows = await projects.list_all(session)
        return [ProjectView.of(row, access) for row in rows if access.sees(row.id)]

    @get("/{name:str}", summary="Show a project", responses=problems(401, 403, 404))
    async def show(self, name: FromPath[str], session: Db, access: Caller) -> ProjectView:
        return ProjectView.of(await find_project(session, access, name), access)

    @patch(
        "/{name:str}",
        opt={"scope": "admin"},
        summary="Change a project's settings",
        responses=problems(400, 401, 403, 404),
    )
    async def change(
        self,
        name: FromPath[str],
        data: JSONBody[ProjectPatch],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> ProjectView:
        """Fields that are left out stay, and null restores a default. The audit log records the change."""
        return ProjectView.of(await change_project(session, access, name, data.settings, document_reader), access)

    @get("/{name:str}/usage", summary="Show what a project uses", responses=problems(401, 403, 404))
    async def usage(
        self, name: FromPath[str], session: Db, access: Caller, limits: NamedDependency[Limits]
    ) -> UsageView:
        """Today's usage, its limits and what is left of them, and the usage of the last 30 days (UTC)."""
        return await view_usage(session, await find_project(session, access, name), limits)

    @delete(
        "/{name:str}",
        opt={"scope": "admin"},
        summary="Delete a project and its data",
        responses=problems(401, 403, 404),
    )
    async def remove(
        self, name: FromPath[str], session: Db, access: Caller, datasets: NamedDependency[DatasetStore]
    ) -> None:
        """Deletes its tasks, trajectories, skills, datasets, APIs, releases and keys irrevocably. The audit log
        keeps its entries, for keys to all projects.
        """
        await delete_project(session, access, name, datasets)


async def create_project(
    session: AsyncSession, access: Access, name: str, first_release: FirstRelease
) -> tables.Project:
    """Raises ForbiddenError for a key of one project, ConflictError if the name is taken."""
    if access.project_id is not None:
        raise ForbiddenError("this key is limited to one project; create projects with a key for all")
    await session.commit()  # no transaction is held while files are read
    project = await first_release.create_project(session, name)
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.PROJECT_CREATED, {})
    await session.commit()
    return project


async def change_project(
    session: AsyncSession, access: Access, name: str, settings: dict[str, Json], reader: DocumentReader
) -> tables.Project:
    """Raises ForbiddenError for what only a key of all projects may change, InvalidError that names the field."""
    if access.project_id is not None and (own := sorted(OPERATORS & settings.keys())):
        raise ForbiddenError(f"only a key for all projects may change {' and '.join(own)}")
    project = await find_project(session, access, name)
    await _check_staging(session, reader, project, settings)
    secrets = project.webhook_secret, project.verifier_secret
    before, after = await projects.change_settings(session, project.id, settings)
    names = ("webhook_secret", "verifier_secret")
    new = {name: "changed" for name, old in zip(names, secrets, strict=True) if getattr(project, name) != old}
    if after != before or new:
        detail = {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after), **new}
        action = tables.AuditAction.SETTINGS_CHANGED
        await audit.add(session, project.id, None, access.actor, action, detail)
    await session.commit()
    return project


async def _check_staging(
    session: AsyncSession, reader: DocumentReader, project: tables.Project, settings: dict[str, Json]
) -> None:
    """Refuse new servers that tasks call. Those that an API gets later on are refused when a trial begins."""
    before = projects.settings_of(project)
    after = changed(before, {name: new for name, new in settings.items() if name == "staging"}).staging
    new = {name: each for name, each in after.items() if each != before.staging.get(name)}
    if new:
        rows = await apis.of_project(session, project.id)
        production = [(await read_api(reader, session, row, row.bind)).servers for row in rows]
        await asyncio.to_thread(refuse_production, new, production)


async def delete_project(session: AsyncSession, access: Access, name: str, datasets: DatasetStore) -> None:
    """Raises NotFoundError."""
    project = await find_project(session, access, name)
    files = await dataset_table.ids_of(session, project.id)
    lost = [{"name": key.name, "prefix": key.hint} for key in await keys.listing(session, project.id)]
    detail = {"name": project.name, "keys": lost}
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.PROJECT_DELETED, detail)
    await projects.delete(session, project.id)
    await session.commit()
    await delete_files(datasets, files)
