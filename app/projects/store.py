"""Projects in the database."""

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import delete as sql_delete
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError, NotFoundError
from app.base.values import BASE, Json
from app.db import tables
from app.db.database import keys_of
from app.projects.settings import ProjectSettings, changed, is_callable_url, stored
from app.projects.webhook_signing import signing_key

SIGNED = ("webhook", "verifier")  # settings whose messages are signed with a secret


async def create(
    session: AsyncSession, name: str, model: str = BASE, evidence: dict[str, Json] | None = None
) -> tables.Project:
    """Create a project and its first release, of a model. Raises ConflictError if the name is taken."""
    project: tables.Project | None = await session.scalar(
        insert(tables.Project).values(name=name).on_conflict_do_nothing().returning(tables.Project)
    )
    if project is None:
        raise ConflictError(f"a project named {name!r} exists already: choose another name")
    first = tables.Release(project_id=project.id, number=1, model=model, evidence=evidence)
    first.state, first.activated_at = tables.ReleaseState.ACTIVE, func.clock_timestamp()
    session.add(first)
    session.add(tables.ProjectTurn(project_id=project.id))
    await session.flush()
    return project


async def by_name(session: AsyncSession, name: str) -> tables.Project:
    project = await session.scalar(select(tables.Project).where(tables.Project.name == name))
    if project is None:
        raise NotFoundError(f"no project is named {name!r}; GET /v1/projects lists them")
    return project


async def by_id(session: AsyncSession, project_id: UUID, *, lock: bool = False) -> tables.Project:
    project = await session.get(tables.Project, project_id, populate_existing=True, with_for_update=lock)
    if project is None:
        raise _unknown(project_id)
    return project


async def list_all(session: AsyncSession) -> Sequence[tables.Project]:
    """Ordered by name."""
    return (await session.scalars(select(tables.Project).order_by(tables.Project.name))).all()


def settings_of(project: tables.Project) -> ProjectSettings:
    return msgspec.convert(project.settings, ProjectSettings)


async def change_settings(
    session: AsyncSession, project_id: UUID, patch: Mapping[str, Json]
) -> tuple[ProjectSettings, ProjectSettings]:
    """Apply a JSON merge patch. Returns the settings before and after. Raises NotFoundError and InvalidError.

    `webhook.secret` and `verifier.secret` are no part of the settings: they are stored encrypted.
    """
    project = await by_id(session, project_id, lock=True)
    before = settings_of(project)
    shown, secrets = patch, {}
    for name in SIGNED:
        shown, secrets[name] = _without_secret(shown, name)
    after = changed(before, shown)
    project.settings = stored(after)
    for name, secret in secrets.items():
        _store_secret(session, project, name, secret, wanted=getattr(after, name) is not None)
    await session.flush()
    return before, after


async def delete(session: AsyncSession, project_id: UUID) -> None:
    """Delete a project with everything in it. Raises NotFoundError."""
    deleted = await session.scalar(
        sql_delete(tables.Project).where(tables.Project.id == project_id).returning(tables.Project.id)
    )
    if deleted is None:
        raise _unknown(project_id)


def _unknown(project_id: UUID) -> NotFoundError:
    return NotFoundError(f"no project has the id {project_id}; GET /v1/projects lists them")


def _store_secret(
    session: AsyncSession, project: tables.Project, name: str, secret: str | None, *, wanted: bool
) -> None:
    """Raises InvalidError if one is wanted, and there is none."""
    column = f"{name}_secret"
    if not wanted:
        setattr(project, column, None)
    elif secret is not None:
        setattr(project, column, keys_of(session).encrypt(secret))
    elif getattr(project, column) is None:
        raise InvalidError(f"settings: {name}.secret is missing: messages are signed with it")


def _without_secret(patch: Mapping[str, Json], name: str) -> tuple[Mapping[str, Json], str | None]:
    """The patch without the `secret` of a setting, and that secret. Raises InvalidError if it or the address is
    invalid.
    """
    setting = patch.get(name)
    if not isinstance(setting, Mapping):
        return patch, None
    if isinstance(url := setting.get("url"), str) and not is_callable_url(url):
        raise InvalidError(f"settings: {name}.url: write http://host/path or https://, without a user or fragment")
    secret = setting.get("secret")
    if "secret" in setting:
        signing_key(secret if isinstance(secret, str) else "", f"{name}.secret")
    shown = {key: value for key, value in setting.items() if key != "secret"}
    return {**patch, name: shown}, secret


async def canary_of(session: AsyncSession, project_id: UUID) -> tables.Release | None:
    release = tables.Release
    there = select(release).where(release.project_id == project_id, release.state == tables.ReleaseState.CANARY)
    return await session.scalar(there)
