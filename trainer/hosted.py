"""A hosted model of a project as the expert of `sage collect`, by its name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlencode

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import embedded_postgres, hosted_models, projects, tables
from app.db.database import open_database
from app.engine.hosted.chat_model import ChatModel
from app.errors import SettingError, WrongUsageError
from app.plugins import registry
from app.release.hosted_models import HostedModels, charged
from app.security.encryption import KeyRing
from app.settings import Settings
from trainer.rollouts.expert import GROUP, OpenModel


class HostedExpert(NamedTuple):
    """An expert as `--expert` names it, and how its model is opened."""

    expert: str
    open_model: OpenModel


def find_hosted(
    name: str, project: str | None, settings: Settings, timeout: float, patience: float
) -> HostedExpert:
    """Of the database of the settings, or that of the `sage up` which runs on this machine. It leads only where
    its project may go, and what it costs counts for the project. `timeout` seconds are for one answer.

    Raises SettingError without either, WrongUsageError if it needs a project, and NotFoundError.
    """
    url, keys = settings.database_url or _embedded(name, settings), KeyRing.open(settings)
    rules = msgspec.structs.replace(HostedModels.of(settings), seconds=timeout)

    async def find() -> tables.HostedModel:
        async with open_database(url, keys=keys) as database, database.sessions() as session:
            owner = await projects.by_name(session, project) if project else await _only(session)
            return await hosted_models.get(session, owner.id, name)

    row = asyncio.run(find())

    @asynccontextmanager
    async def open_model() -> AsyncIterator[ChatModel]:
        async with open_database(url, keys=keys) as database:
            opened = rules.open(database.sessions, row.id, patience)
            owner = str(row.project_id)
            async with charged(opened, database.sessions, row.project_id, owner, row.id) as model:
                yield model

    return HostedExpert(f"chat?{urlencode({'url': row.url, 'model': row.model})}", open_model)


async def _only(session: AsyncSession) -> tables.Project:
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
