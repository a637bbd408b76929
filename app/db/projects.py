"""Projects in the database."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.errors import ConflictError, NotFoundError
from app.project_settings import ProjectSettings, changed, stored
from app.records import Json


async def create(session: AsyncSession, name: str) -> models.Project:
    """Create a project and its first release, of the base model. Raises ConflictError if the name is taken."""
    project: models.Project | None = await session.scalar(
        insert(models.Project).values(name=name).on_conflict_do_nothing().returning(models.Project)
    )
    if project is None:
        raise ConflictError(f"a project named {name!r} exists already: choose another name")
    active = models.ReleaseState.ACTIVE
    session.add(models.Release(project_id=project.id, number=1, state=active, activated_at=func.clock_timestamp()))
    await session.flush()
    return project


async def by_name(session: AsyncSession, name: str) -> models.Project:
    project = await session.scalar(select(models.Project).where(models.Project.name == name))
    if project is None:
        raise NotFoundError(f"no project is named {name!r}; GET /v1/projects lists them")
    return project


async def by_id(session: AsyncSession, project_id: UUID) -> models.Project:
    project = await session.get(models.Project, project_id, populate_existing=True)
    if project is None:
        raise NotFoundError(f"no project has the id {project_id}; GET /v1/projects lists them")
    return project


async def list_all(session: AsyncSession) -> Sequence[models.Project]:
    """Ordered by name."""
    return (await session.scalars(select(models.Project).order_by(models.Project.name))).all()


def settings_of(project: models.Project) -> ProjectSettings:
    return msgspec.convert(project.settings, ProjectSettings)


async def change_settings(
    session: AsyncSession, project_id: UUID, patch: Mapping[str, Json]
) -> tuple[ProjectSettings, ProjectSettings]:
    """Apply a JSON merge patch. Returns the settings before and after. Raises NotFoundError and InvalidError."""
    project = await session.get(models.Project, project_id, populate_existing=True, with_for_update=True)
    if project is None:
        raise NotFoundError(f"no project has the id {project_id}; GET /v1/projects lists them")
    before = settings_of(project)
    after = changed(before, patch)
    project.settings = stored(after)
    await session.flush()
    return before, after


async def delete(session: AsyncSession, project_id: UUID) -> None:
    """Delete a project with everything in it. Raises NotFoundError."""
    deleted = await session.scalar(
        sql_delete(models.Project).where(models.Project.id == project_id).returning(models.Project.id)
    )
    if deleted is None:
        raise NotFoundError(f"no project has the id {project_id}; GET /v1/projects lists them")
