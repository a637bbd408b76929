"""Authentication and authorization. Every route under /v1 names the scope it needs in its `opt`."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.dependencies import Dependencies
from app.api.key_gate import KeyGate
from app.db import keys, projects, releases, tables, tasks
from app.db.database import TRANSIENT, reading
from app.errors import ForbiddenError, InvalidError, NotFoundError, UnauthorizedError
from app.project.project_settings import ProjectSettings

FindKey = Callable[[AsyncSession, str], Awaitable[tuple[tables.Key, ProjectSettings] | None]]
"""Finds the valid key of a secret, and the settings of its project."""

Connection = ASGIConnection[Any, Any, Any, Any]
ANY_KEY = ""  # the scope of routes that need a key with any scopes


class Access(msgspec.Struct, frozen=True):
    """The key that a request was authenticated with."""

    key_id: UUID
    name: str
    scopes: frozenset[str]
    project_id: UUID | None  # None: all projects
    has_ended: Callable[[], Awaitable[bool]]
    """Whether the key was revoked since, or the session of the console has ended. One query; whatever answers for
    long asks before each further part of the answer. False while the database does not answer.
    """

    @property
    def actor(self) -> str:
        """The name of this key in the audit log."""
        return f"key {self.name}"

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes or scope == ANY_KEY

    def require(self, scope: str) -> None:
        """Raises ForbiddenError."""
        if not self.allows(scope):
            raise ForbiddenError(f"this key lacks the scope {scope!r}; ask an administrator for a key that has it")

    def sees(self, project_id: UUID) -> bool:
        return self.project_id in (None, project_id)


Caller: TypeAlias = NamedDependency[Access]
Db: TypeAlias = NamedDependency[AsyncSession]


async def authorize(connection: Connection, handler: BaseRouteHandler) -> None:
    """A guard: runs before the body is read, so that a request without a key learns nothing about its form."""
    kind, _, secret = connection.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not secret.strip():
        raise UnauthorizedError("send a key: Authorization: Bearer <key>")
    access = await read_access(connection, secret.strip())
    access.require(handler.opt["scope"])
    connection.state["access"] = access


async def read_access(connection: Connection, secret: str, find: FindKey = keys.by_secret) -> Access:
    """The key of a secret, within the limits on keys. Raises UnauthorizedError, LimitError."""
    dependencies: Dependencies = connection.app.state["dependencies"]
    gate: KeyGate = connection.app.state["key_gate"]
    address, failures = connection.client.host if connection.client else "", dependencies.failed_keys_per_minute
    gate.admit(address, secret, failures)

    async def look_up() -> tuple[tables.Key, ProjectSettings] | None:
        async with reading(dependencies.sessions) as session:
            return await find(session, secret)

    async def has_ended() -> bool:
        try:
            return await look_up() is None
        except TRANSIENT:
            return False

    if (found := await look_up()) is None:
        gate.failed(address, secret, failures)
        raise UnauthorizedError("this key is unknown or was revoked")
    key, settings = found
    gate.passed(secret, key.id, settings.limits.over(dependencies.limits).requests_per_minute)
    return Access(key.id, key.name, frozenset(key.scopes), key.project_id, has_ended)


async def provide_access(request: Request[Any, Any, Any]) -> Access:
    access: Access = request.state["access"]
    return access


async def find_project(session: AsyncSession, access: Access, name: str | None) -> tables.Project:
    """The project of that name; without a name the key's own, or the only one that exists.

    Raises NotFoundError also for a project that the key may not see, and InvalidError if a name is needed.
    """
    if name is None and access.project_id is not None:
        return await projects.by_id(session, access.project_id)
    if name is not None:
        return await _visible_project(session, access, name)
    existing = await projects.list_all(session)
    if len(existing) == 1:
        return existing[0]
    if not existing:
        raise InvalidError("there is no project yet; create one with POST /v1/projects")
    raise InvalidError("`project` is required: there are several; GET /v1/projects lists them")


async def project_filter(session: AsyncSession, access: Access, name: str | None) -> UUID | None:
    """The project that a listing is limited to. None: all projects, for a key that sees all."""
    if name is None:
        return access.project_id
    return (await _visible_project(session, access, name)).id


async def project_names(session: AsyncSession) -> dict[UUID, str]:
    return {project.id: project.name for project in await projects.list_all(session)}


async def find_task(session: AsyncSession, access: Access, task_id: UUID) -> tables.Task:
    """Raises NotFoundError also for a task of a project that the key may not see."""
    return await tasks.get(session, task_id, access.project_id)


async def find_release(session: AsyncSession, access: Access, release_id: UUID) -> tables.Release:
    """Raises NotFoundError also for a release of a project that the key may not see."""
    release = await releases.get(session, release_id)
    if not access.sees(release.project_id):
        raise NotFoundError(f"no release has the id {release_id}; GET /v1/releases lists them")
    return release


async def _visible_project(session: AsyncSession, access: Access, name: str) -> tables.Project:
    unknown = NotFoundError(f"no project is named {name!r}; GET /v1/projects lists them")
    project = await projects.by_name(session, name)
    if not access.sees(project.id):
        raise unknown
    return project
