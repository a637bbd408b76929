"""The key that a request came with. Every route under /v1 names the scope it needs in its `opt`."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import ForbiddenError

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


async def provide_access(request: Request[Any, Any, Any]) -> Access:
    access: Access = request.state["access"]
    return access
