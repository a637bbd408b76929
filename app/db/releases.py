"""Releases in the database. Which one serves is decided here, and only here."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.errors import NotFoundError


async def active(session: AsyncSession, project_id: UUID) -> models.Release:
    """The one that new tasks are pinned to."""
    release = await session.scalar(
        select(models.Release).where(
            models.Release.project_id == project_id, models.Release.state == models.ReleaseState.ACTIVE
        )
    )
    if release is None:
        raise NotFoundError(f"project {project_id} has no active release: activate one")
    return release


async def get(session: AsyncSession, release_id: UUID) -> models.Release:
    release = await session.get(models.Release, release_id)
    if release is None:
        raise NotFoundError(f"no release has the id {release_id}")
    return release


async def of_project(session: AsyncSession, project_id: UUID) -> Sequence[models.Release]:
    """Newest first."""
    query = (
        select(models.Release)
        .where(models.Release.project_id == project_id)
        .order_by(models.Release.number.desc())
    )
    return (await session.scalars(query)).all()
