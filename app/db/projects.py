"""Projects in the database."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.db.database import keys_of
from app.errors import ConflictError, InvalidError, NotFoundError
from app.project.project_settings import ProjectSettings, changed, stored
from app.project.webhook import check_url, signing_key
from app.records import BASE, Json


async def create(
    session: AsyncSession, name: str, model: str = BASE, evidence: dict[str, Json] | None = None
) -> models.Project:
    """Create a project and its first release, of a model. Raises ConflictError if the name is taken."""
    project: models.Project | None = await session.scalar(
        insert(models.Project).values(name=name).on_conflict_do_nothing().returning(models.Project)
    )
    if project is None:
        raise ConflictError(f"a project named {name!r} exists already: choose another name")
    first = models.Release(project_id=project.id, number=1, model=model, evidence=evidence)
    first.state, first.activated_at = models.ReleaseState.ACTIVE, func.clock_timestamp()
    session.add(first)
    session.add(models.ProjectTurn(project_id=project.id))
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
    """Apply a JSON merge patch. Returns the settings before and after. Raises NotFoundError and InvalidError.

    `webhook.secret` is no part of the settings: it is stored encrypted in `webhook_secret`.
    """
    project = await session.get(models.Project, project_id, populate_existing=True, with_for_update=True)
    if project is None:
        raise NotFoundError(f"no project has the id {project_id}; GET /v1/projects lists them")
    before = settings_of(project)
    shown, secret = _without_secret(patch)
    after = changed(before, shown)
    project.settings = stored(after)
    if secret is not None:
        project.webhook_secret = keys_of(session).encrypt(secret)
    if after.webhook is None:
        project.webhook_secret = None
    elif project.webhook_secret is None:
        raise InvalidError("settings: webhook.secret is missing: messages are signed with it")
    await session.flush()
    return before, after


async def delete(session: AsyncSession, project_id: UUID) -> None:
    """Delete a project with everything in it. Raises NotFoundError."""
    deleted = await session.scalar(
        sql_delete(models.Project).where(models.Project.id == project_id).returning(models.Project.id)
    )
    if deleted is None:
        raise NotFoundError(f"no project has the id {project_id}; GET /v1/projects lists them")


def _without_secret(patch: Mapping[str, Json]) -> tuple[Mapping[str, Json], str | None]:
    """The patch without `webhook.secret`, and that secret. Raises InvalidError if it or the address is invalid."""
    webhook = patch.get("webhook")
    if not isinstance(webhook, Mapping):
        return patch, None
    if isinstance(url := webhook.get("url"), str):
        check_url(url)
    secret = webhook.get("secret")
    if "secret" in webhook:
        signing_key(secret if isinstance(secret, str) else "")
    shown = {name: value for name, value in webhook.items() if name != "secret"}
    return {**patch, "webhook": shown}, secret
