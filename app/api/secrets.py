"""Routes for the secrets of a project, to which parameters of its APIs can be bound. Values are never shown."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, put
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Access, Caller, Db
from app.api.console_links import ConsoleLinks
from app.api.problem import problems
from app.api.project_access import find_project
from app.api.validation import Name, ProjectName, Text
from app.db import audit, secrets, tables
from app.db.tables import AuditAction
from app.errors import InvalidError

SecretText = Annotated[Text, msgspec.Meta(min_length=4, max_length=10_000, description="never shown again")]


class SecretRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a secret."""

    value: SecretText


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value. `used_at` is when a task last used it."""

    name: str
    project: str
    created_at: datetime
    used_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.Secret, project: str) -> Self:
        links = ConsoleLinks.to("/console/secrets", project)
        return cls(name=row.name, project=project, created_at=row.created_at, used_at=row.used_at, links=links)


class SecretController(Controller):
    path = "/secrets"
    tags = ("Secrets",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @put("/{name:str}", summary="Store a secret", responses=problems(400, 401, 403, 404))
    async def store(
        self,
        name: FromPath[str],
        data: JSONBody[SecretRequest],
        session: Db,
        access: Caller,
        project: ProjectName = None,
    ) -> SecretView:
        """Replaces the one of that name. It is encrypted, and only the gateway reads it: see `bind` of an API."""
        _check_name(name)
        owner = await find_project(session, access, project)
        row = await store_secret(session, access, owner.id, name, data.value)
        await session.commit()
        return SecretView.of(row, owner.name)

    @get(summary="List secrets", responses=problems(400, 401, 403, 404))
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[SecretView]:
        """Sorted by name."""
        owner = await find_project(session, access, project)
        return [SecretView.of(row, owner.name) for row in await secrets.of_project(session, owner.id)]

    @delete("/{name:str}", summary="Delete a secret", responses=problems(400, 401, 403, 404))
    async def remove(self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None) -> None:
        """Calls that are bound to it fail from then on."""
        owner = await find_project(session, access, project)
        await delete_secret(session, access, owner.id, name)
        await session.commit()


async def store_secret(
    session: AsyncSession, access: Access, project_id: UUID, name: str, value: str
) -> tables.Secret:
    """Replaces the one of that name. Audited."""
    row = await secrets.put(session, project_id, name, value)
    await audit.add(session, project_id, None, access.actor, AuditAction.SECRET_STORED, {"name": name})
    return row


async def delete_secret(session: AsyncSession, access: Access, project_id: UUID, name: str) -> None:
    """Audited. Raises NotFoundError."""
    await secrets.delete(session, project_id, name)
    await audit.add(session, project_id, None, access.actor, AuditAction.SECRET_DELETED, {"name": name})


def _check_name(name: str) -> None:
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the name of a secret: {error}") from error
