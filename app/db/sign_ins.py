"""Sessions of the console, and the links that start them. Both end with the key that they stand for."""

import hashlib
import secrets
from datetime import timedelta
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import keys, tables
from app.db.clock import from_now
from app.errors import UnauthorizedError
from app.project.project_settings import ProjectSettings

SESSION = timedelta(hours=12)
LINK = timedelta(minutes=15)


async def begin(session: AsyncSession, key_id: UUID, *, by_link: bool = False) -> str:
    """Begin a session of the console, and return its secret."""
    return await _add(session, key_id, SESSION, link=False, by_link=by_link)


async def offer_link(session: AsyncSession, key_id: UUID) -> str:
    """The secret of a link that starts one session, within minutes."""
    return await _add(session, key_id, LINK, link=True)


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
    return await keys.valid(session, tables.Key.id == own.scalar_subquery())


async def _add(
    session: AsyncSession, key_id: UUID, lifetime: timedelta, *, link: bool, by_link: bool = False
) -> str:
    """Also forget what has expired: there is never more than was added since."""
    await session.execute(delete(tables.SignIn).where(tables.SignIn.expires_at <= func.clock_timestamp()))
    secret = secrets.token_urlsafe(32)
    expires = from_now(lifetime.total_seconds())
    session.add(tables.SignIn(hash=_hash(secret), key_id=key_id, link=link, by_link=by_link, expires_at=expires))
    await session.flush()
    return secret


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
