"""API keys, sessions of the console and the links that start these. Only the sha256 of a secret is kept.

Sessions and links end with the key that they stand for.
"""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError, NotFoundError, UnauthorizedError
from app.base.values import Json
from app.db import tables
from app.db.queries import from_now
from app.projects import audit
from app.projects.settings import ProjectSettings

_PREFIX = "sage_"
_HINT = len(_PREFIX) + 4  # characters that are shown
SESSION = timedelta(hours=12)
LINK = timedelta(minutes=15)


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


async def begin(session: AsyncSession, key_id: UUID, *, by_link: bool = False) -> str:
    """Begin a session of the console, and return its secret."""
    return await _add(session, key_id, link=False, by_link=by_link)


async def offer_link(session: AsyncSession, key_id: UUID) -> str:
    """The secret of a link that starts one session, within minutes."""
    return await _add(session, key_id, link=True)


async def redeem(session: AsyncSession, secret: str) -> str:
    """Use a link up: begin its session. Raises UnauthorizedError if another request was faster."""
    row = tables.SignIn
    used = delete(row).where(row.hash == _hash(secret), row.link, row.expires_at > func.clock_timestamp())
    key_id = await session.scalar(used.returning(row.key_id))
    if key_id is None:
        raise UnauthorizedError("this link was used already or has expired: `sage console` prints a new one")
    return await begin(session, key_id, by_link=True)


async def key_of(session: AsyncSession, secret: str) -> tuple[tables.Key, ProjectSettings] | None:
    """The key of a session and the settings of its project; None if the session or its key has ended."""
    return await _key(session, secret, link=False)


async def key_of_link(session: AsyncSession, secret: str) -> tuple[tables.Key, ProjectSettings] | None:
    """The key that a link signs in with; None if the link was used, or it or its key has ended."""
    return await _key(session, secret, link=True)


async def is_by_link(session: AsyncSession, secret: str) -> bool:
    """Whether a link began the session: its person is at the server's machine. A key can begin one by a script."""
    row = tables.SignIn
    return bool(await session.scalar(select(row.by_link).where(row.hash == _hash(secret))))


async def end(session: AsyncSession, secret: str) -> None:
    await session.execute(delete(tables.SignIn).where(tables.SignIn.hash == _hash(secret)))


async def _key(session: AsyncSession, secret: str, *, link: bool) -> tuple[tables.Key, ProjectSettings] | None:
    row = tables.SignIn
    own = select(row.key_id).where(
        row.hash == _hash(secret), row.link.is_(link), row.expires_at > func.clock_timestamp()
    )
    return await valid(session, tables.Key.id == own.scalar_subquery())


async def _add(session: AsyncSession, key_id: UUID, *, link: bool, by_link: bool = False) -> str:
    """Also forget what has expired: there is never more than was added since."""
    await session.execute(delete(tables.SignIn).where(tables.SignIn.expires_at <= func.clock_timestamp()))
    secret = secrets.token_urlsafe(32)
    expires = from_now((LINK if link else SESSION).total_seconds())
    session.add(tables.SignIn(hash=_hash(secret), key_id=key_id, link=link, by_link=by_link, expires_at=expires))
    await session.flush()
    return secret
