"""A hosted model of a project as the judge of its tasks, or as the expert of `sage collect`.

It is known by the name of its entry, and has the URL, key and prices of that.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base import plugins
from app.base.encryption import KeyRing
from app.base.errors import InvalidError, SettingError, WrongUsageError
from app.base.judge import NamedJudge
from app.base.settings import Settings
from app.base.values import Trajectory
from app.db import postgres, tables
from app.db.database import Sessions, open_database
from app.engine.protocol import ChatModel
from app.projects import store as projects
from app.releases import hosted_models
from app.releases.hosted_models import HostedModels, charged
from trainer.judge import GroupSize, MaxTokens, OpenAiJudge, Seconds
from trainer.rollouts.episode import GROUP, OpenModel


class HostedJudge(msgspec.Struct, frozen=True, kw_only=True):
    """Each project has its own, if it has a model of this name. It is known before any database is open."""

    model: str
    group_size: int
    max_tokens: int
    timeout: float

    async def of_project(self, sessions: Sessions, project_id: UUID, deployment: Settings) -> NamedJudge:
        """What it costs counts for the project. Its name differs where the URL or the model of the entry does.

        Raises NotFoundError if the project has no model of the name.
        """
        async with sessions() as session:
            entry = await hosted_models.get(session, project_id, self.model)
        rules = msgspec.structs.replace(HostedModels.of(deployment), seconds=self.timeout)

        @asynccontextmanager
        async def open_model() -> AsyncIterator[ChatModel]:
            opened = rules.open(sessions, entry.id, patience=0)
            async with charged(opened, sessions, project_id, str(project_id), entry.id) as model:
                yield model

        judge = OpenAiJudge(open_model, self.group_size, self.max_tokens)
        return NamedJudge("hosted", f"{deployment.judge}\n{entry.url}\n{entry.model}", group=judge)

    async def score_group(self, rubric: str, group: Sequence[Trajectory]) -> list[float | None]:  # noqa: ARG002
        """That of a project does."""
        raise InvalidError(f"the judge {self.model} is a hosted model, which belongs to a project")


def load_judge(
    *, model: str, group_size: GroupSize = 8, max_tokens: MaxTokens = 2_000, timeout: Seconds = 60.0
) -> HostedJudge:
    """The plug-in `hosted`: `model` is the name of a hosted model in the projects that are judged."""
    return HostedJudge(model=model, group_size=group_size, max_tokens=max_tokens, timeout=timeout)


def find_hosted(
    name: str, project: str | None, settings: Settings, timeout: float, patience: float
) -> tuple[str, OpenModel]:
    """An expert as `--expert` names it, and how its model is opened.

    Of the database of the settings, or that of the `sage up` which runs on this machine. It leads only where
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

    return f"chat?{urlencode({'url': row.url, 'model': row.model})}", open_model


async def _only(session: AsyncSession) -> tables.Project:
    known = await projects.list_all(session)
    if len(known) != 1:
        raise WrongUsageError(f"there are {len(known)} projects: name the one of the hosted model with --project")
    return known[0]


def _embedded(name: str, settings: Settings) -> str:
    directory = settings.data_dir.absolute() / "postgres"
    if not (directory / "postmaster.pid").exists():
        raise SettingError(
            f"no expert is named {name!r}, there are {', '.join(plugins.names(GROUP))}; for a hosted model set "
            "DATABASE_URL, or start its server on this machine (`sage up`)"
        )
    return postgres.start(directory)
