"""A hosted model of a project as the expert of `sage collect`, by its name: its endpoint and its key."""

import asyncio
from typing import NamedTuple
from urllib.parse import urlencode

from sqlalchemy.ext.asyncio import AsyncSession

from app.db import embedded_postgres, hosted_models, models, projects
from app.db.database import open_database
from app.errors import SettingError, WrongUsageError
from app.gateway.hosted_models import HostedModels
from app.plugins import registry
from app.security.encryption import KeyRing
from app.settings import Settings
from trainer.rollouts.expert import GROUP


class HostedExpert(NamedTuple):
    """An expert as `--expert` names it, and its key."""

    expert: str
    key: str


def find_hosted(name: str, project: str | None, settings: Settings) -> HostedExpert:
    """Of the database of the settings, or that of the `sage up` which runs on this machine.

    Raises SettingError without either, WrongUsageError if it needs a project, and NotFoundError.
    """
    return asyncio.run(_find(name, project, settings))


async def _find(name: str, project: str | None, settings: Settings) -> HostedExpert:
    url = settings.database_url or _embedded(name, settings)
    keys = KeyRing.open(settings)
    async with open_database(url, keys=keys) as database, database.sessions() as session:
        owner = await projects.by_name(session, project) if project else await _only(session)
        row = await hosted_models.get(session, owner.id, name)
        options = urlencode({"url": row.url, "model": row.model})
        return HostedExpert(f"chat?{options}", HostedModels.of(settings).key_of(row, keys))


async def _only(session: AsyncSession) -> models.Project:
    known = await projects.list_all(session)
    if len(known) != 1:
        raise WrongUsageError(f"there are {len(known)} projects: name the one of the hosted model with --project")
    return known[0]


def _embedded(name: str, settings: Settings) -> str:
    directory = settings.data_dir.absolute() / "postgres"
    if not (directory / "postmaster.pid").exists():
        raise SettingError(
            f"no expert is named {name!r}, there are {', '.join(registry.names(GROUP))}; for a hosted model set "
            "DATABASE_URL, or start its server on this machine (`sage up`)"
        )
    return embedded_postgres.start(directory)
