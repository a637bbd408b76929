"""API keys in the database: only the sha256 of a secret is kept."""

import hashlib
import secrets
from collections.abc import Sequence
from enum import StrEnum
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import audit, tables
from app.errors import InvalidError, NotFoundError
from app.project.project_settings import ProjectSettings
from app.records import Json

_PREFIX = "sage_"
_HINT = len(_PREFIX) + 4  # characters that are shown


class Scope(StrEnum):
    """What a key gives access to."""

    TASKS = "tasks"
    SKILLS = "skills"
    APPROVALS = "approvals"
    ADMIN = "admin"  # and all other scopes


async def create(
    session: AsyncSession, name: str, scopes: Sequence[str], project_id: UUID | None = None
) -> tuple[tables.Key, str]:
    """Return the key and its secret, which is not stored. Raises InvalidError for an unknown scope."""
    unknown = sorted(set(scopes) - set(Scope))
    if unknown or not scopes:
        raise InvalidError(f"scopes are any of {', '.join(Scope)}, not {', '.join(unknown) or 'none'}")
    secret = _PREFIX + secrets.token_urlsafe(32)
    key = tables.Key(
        name=name,
        hash=_hash(secret),
        hint=secret[:_HINT],
        scopes=sorted(set(scopes)),
        project_id=project_id,
    )
    session.add(key)
    await session.flush()
    return key, secret


async def by_secret(session: AsyncSession, secret: str) -> tuple[tables.Key, ProjectSettings] | None:
    """The key and the settings of its project; None if the secret is unknown or its key revoked."""
    return await valid(session, tables.Key.hash == _hash(secret))


async def valid(session: AsyncSession, which: ColumnElement[bool]) -> tuple[tables.Key, ProjectSettings] | None:
    """The key that meets the condition, and the settings of its project; None if there is none, or it is
    revoked.
    """
    row = (
        await session.execute(
            select(tables.Key, tables.Project.settings)
            .outerjoin(tables.Project, tables.Project.id == tables.Key.project_id)
            .where(which, tables.Key.revoked_at.is_(None))
        )
    ).one_or_none()
    return (row[0], msgspec.convert(row[1] or {}, ProjectSettings)) if row else None


async def listing(session: AsyncSession, project_id: UUID | None = None) -> Sequence[tables.Key]:
    """Oldest first, with revoked ones; only a project's own if one is given."""
    query = select(tables.Key).order_by(tables.Key.created_at)
    if project_id is not None:
        query = query.where(tables.Key.project_id == project_id)
    return (await session.scalars(query)).all()


async def create_admin(session: AsyncSession, name: str) -> str:
    """Create an administrator's key on the server's own machine, where there need be no other; audited as it."""
    key, secret = await create(session, name, ["admin"])
    await audit.add(session, None, None, "server", tables.AuditAction.KEY_CREATED, about(key))
    return secret


def about(key: tables.Key) -> dict[str, Json]:
    """What the audit log says of a key."""
    return {"key": str(key.id), "name": key.name, "prefix": key.hint, "scopes": list(key.scopes)}


async def revoke(session: AsyncSession, key_id: UUID) -> tables.Key:
    """Revoke a key permanently. Idempotent. Raises NotFoundError."""
    key = await session.scalar(
        update(tables.Key)
        .where(tables.Key.id == key_id)
        .values(revoked_at=func.coalesce(tables.Key.revoked_at, func.clock_timestamp()))
        .returning(tables.Key)
        .execution_options(populate_existing=True)
    )
    if key is None:
        raise NotFoundError(f"no key has the id {key_id}; GET /v1/keys lists them")
    return key


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
