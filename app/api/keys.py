"""Routes for API keys. The secret is shown once; only its hash is stored."""

from datetime import datetime
from typing import Annotated, Any, Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Access, Caller, Db
from app.api.columns import columns
from app.api.console_links import ConsoleLinks
from app.api.problem import problems
from app.api.project_access import find_project, project_names
from app.api.validation import Name
from app.db import audit, keys, tables
from app.db.keys import Scope
from app.db.tables import AuditAction
from app.errors import NotFoundError


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scopes: `tasks` to submit and follow tasks, `skills` to read and manage skills, `approvals` to approve or
    refuse API calls, `admin` for everything.
    """

    name: Name
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=len(Scope))]
    project: str | None = None


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    hint: str = msgspec.field(name="prefix")  #: of the secret
    scopes: list[str]
    project: str | None
    created_at: datetime
    revoked_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, key: tables.Key, names: dict[UUID, str]) -> Self:
        return cls(**_columns(key, names))


class CreatedKey(KeyView, frozen=True, kw_only=True):
    """`secret` is shown here and never again."""

    secret: str


class KeyController(Controller):
    path = "/keys"
    tags = ("Keys",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(summary="Create a key", responses=problems(400, 401, 403, 404))
    async def create(self, data: JSONBody[KeyRequest], session: Db, access: Caller) -> CreatedKey:
        """Without `project` the key is valid for all projects, unless the calling key is limited to one itself."""
        created = await add_key(session, access, data)
        await session.commit()
        return created

    @get(summary="List keys", responses=problems(401, 403))
    async def index(self, session: Db, access: Caller) -> list[KeyView]:
        """Including revoked keys. Secrets are never shown."""
        return await list_keys(session, access)

    @delete("/{key_id:uuid}", summary="Revoke a key", responses=problems(400, 401, 403, 404))
    async def revoke(self, key_id: FromPath[UUID], session: Db, access: Caller) -> None:
        """Effective immediately: event streams that it has opened send nothing more, and end within 15 s."""
        await revoke_key(session, access, key_id)
        await session.commit()


async def list_keys(session: AsyncSession, access: Access) -> list[KeyView]:
    """Those that the caller may see, oldest first."""
    names = await project_names(session)
    return [KeyView.of(key, names) for key in await keys.listing(session, access.project_id)]


async def add_key(session: AsyncSession, access: Access, request: KeyRequest) -> CreatedKey:
    """Create a key; one of a project creates others of that alone. Raises NotFoundError, InvalidError."""
    limited = request.project is not None or access.project_id is not None
    project = await find_project(session, access, request.project) if limited else None
    key, secret = await keys.create(session, request.name, request.scopes, project.id if project else None)
    await _record(session, access, key, AuditAction.KEY_CREATED)
    return CreatedKey(secret=secret, **_columns(key, await project_names(session)))


async def revoke_key(session: AsyncSession, access: Access, key_id: UUID) -> tables.Key:
    """Raises NotFoundError also for a key that the caller may not see."""
    if key_id not in {key.id for key in await keys.listing(session, access.project_id)}:
        raise NotFoundError(f"no key has the id {key_id}; GET /v1/keys lists them")
    key = await keys.revoke(session, key_id)
    await _record(session, access, key, AuditAction.KEY_REVOKED)
    return key


async def _record(session: AsyncSession, access: Access, key: tables.Key, action: AuditAction) -> None:
    await audit.add(session, key.project_id, None, access.actor, action, keys.about(key))


def _columns(key: tables.Key, names: dict[UUID, str]) -> dict[str, Any]:
    project = names[key.project_id] if key.project_id else None
    links = ConsoleLinks.to("/console/keys", project)
    return {**columns(key, KeyView, "project", "links"), "project": project, "links": links}
