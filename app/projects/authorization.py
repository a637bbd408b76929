"""Who may do what: the key of a request, within the limits on keys, and the project that it is about."""

from collections.abc import Awaitable, Callable
from typing import Protocol
from uuid import UUID

from litestar.handlers import BaseRouteHandler
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError, NotFoundError, UnauthorizedError
from app.db import tables
from app.db.database import TRANSIENT, Sessions, reading
from app.projects import keys
from app.projects import store as projects
from app.projects.settings import Limits, ProjectSettings
from app.web.access import Access, Connection, KeyGate

FindKey = Callable[[AsyncSession, str], Awaitable[tuple[tables.Key, ProjectSettings] | None]]
"""Finds the valid key of a secret, and the settings of its project."""


class _KeyRules(Protocol):
    """What a server's dependencies say about keys."""

    @property
    def sessions(self) -> Sessions: ...
    @property
    def limits(self) -> Limits: ...


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
    dependencies: _KeyRules = connection.app.state["dependencies"]
    gate: KeyGate = connection.app.state["key_gate"]
    address = connection.client.host if connection.client else ""
    gate.admit(address, secret)

    async def look_up() -> tuple[tables.Key, ProjectSettings] | None:
        async with reading(dependencies.sessions) as session:
            return await find(session, secret)

    async def has_ended() -> bool:
        try:
            return await look_up() is None
        except TRANSIENT:
            return False

    if (found := await look_up()) is None:
        gate.failed(address, secret)
        raise UnauthorizedError("this key is unknown or was revoked")
    key, settings = found
    gate.passed(secret, key.id, settings.limits.over(dependencies.limits).requests_per_minute)
    return Access(key.id, key.name, frozenset(key.scopes), key.project_id, has_ended)


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


async def _visible_project(session: AsyncSession, access: Access, name: str) -> tables.Project:
    project = await projects.by_name(session, name)
    if not access.sees(project.id):
        raise NotFoundError(f"no project is named {name!r}; GET /v1/projects lists them")
    return project
