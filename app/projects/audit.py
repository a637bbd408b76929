"""The audit log of changes of what serves. Entries are only added."""

import re
from collections.abc import Collection, Mapping
from datetime import datetime
from textwrap import shorten
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import tables
from app.db.queries import Page, read_page
from app.db.tables import AuditAction

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def add(
    session: AsyncSession,
    project_id: UUID | None,
    release_id: UUID | None,
    actor: str,
    action: AuditAction,
    detail: dict[str, Json],
) -> tables.AuditEntry:
    """`actor` is "key <name>", "gate", "canary", "watch" or "server". Without a project it concerns all."""
    row, project = tables.AuditEntry, tables.Project
    entry = row(
        project_id=project_id,
        project=select(project.name).where(project.id == project_id).scalar_subquery(),
        release_id=release_id,
        actor=actor,
        action=action,
        detail=detail,
    )
    session.add(entry)
    await session.flush()
    return entry


async def add_once(
    session: AsyncSession,
    project_id: UUID,
    release_id: UUID,
    actor: str,
    action: AuditAction,
    detail: dict[str, Json],
) -> tables.AuditEntry:
    """Add an entry unless the release's latest one is equal: repeated attempts are logged once."""
    row = tables.AuditEntry
    newest = (
        select(row).where(row.release_id == release_id).order_by(row.created_at.desc(), row.id.desc()).limit(1)
    )
    last = await session.scalar(newest)
    if last is not None and (last.actor, last.action, last.detail) == (actor, action, detail):
        return last
    return await add(session, project_id, release_id, actor, action, detail)


async def page(
    session: AsyncSession,
    project_id: UUID | None,
    *,
    release_id: UUID | None = None,
    actions: Collection[AuditAction] = (),
    actor: str = "",
    cursor: str | None = None,
    limit: int,
) -> Page[tables.AuditEntry]:
    """Newest first; of every project if `project_id` is None. `actor` is a part of the name.

    Raises InvalidError for an invalid cursor.
    """
    query = select(tables.AuditEntry)
    if project_id is not None:
        query = query.where(tables.AuditEntry.project_id == project_id)
    if release_id is not None:
        query = query.where(tables.AuditEntry.release_id == release_id)
    if actions:
        query = query.where(tables.AuditEntry.action.in_(actions))
    if actor:
        query = query.where(tables.AuditEntry.actor.icontains(actor, autoescape=True))
    return await read_page(session, query, tables.AuditEntry, cursor, limit)


async def deleted(session: AsyncSession, project_ids: Collection[UUID]) -> set[UUID]:
    """Those of the projects that were deleted."""
    row = tables.AuditEntry
    gone = select(row.project_id).where(row.project_id.in_(project_ids), row.action == AuditAction.PROJECT_DELETED)
    return {each for each in await session.scalars(gone) if each is not None}


async def release_moments(
    session: AsyncSession, project_id: UUID, actions: Collection[AuditAction]
) -> list[tuple[datetime, UUID, AuditAction]]:
    """When something of this happened to one of the project's releases, oldest first."""
    row, release = tables.AuditEntry, tables.Release
    query = (
        select(row.created_at, row.release_id, row.action)
        .join(release, release.id == row.release_id)
        .where(release.project_id == project_id, row.action.in_(actions))
        .order_by(row.created_at, row.id)
    )
    return [(at, release_id, action) for at, release_id, action in await session.execute(query) if release_id]


def gist(detail: Mapping[str, Json]) -> str:
    """What is worth reading at a glance: short values without ids, and the names of what else there is.

    >>> gist({"key": "7e4f291e-8a9f-4b6e-8e28-3eea80a59b6d", "name": "ci", "scopes": ["tasks"]})
    'name ci, scopes'
    >>> gist({"before": {"skills": "open", "weight": 1.0}, "after": {"skills": "review", "weight": 1.0}})
    'skills'
    """
    before, after = detail.get("before"), detail.get("after")
    if isinstance(before, dict) and isinstance(after, dict):
        changed = [name for name in after if before.get(name) != after[name]]
        return ", ".join([*changed, *(name for name in detail if name not in ("before", "after"))])
    texts = [_text(name, value) for name, value in detail.items() if value not in (None, "", [], {})]
    return shorten(", ".join(filter(None, texts)), 100, placeholder=" …") or "details"


def _text(name: str, value: Json) -> str:
    if isinstance(value, str) and _ID.fullmatch(value):
        return ""
    return f"{name} {value}" if isinstance(value, str | int | float) else name
