"""Route for the environments that the training workers have installed."""

import msgspec
from litestar import Controller, get
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.plugin_options import check_environment
from app.base.values import Json
from app.db import environments
from app.run_settings import RunSettings
from app.web.access import ANY_KEY, Db
from app.web.problem import problems


class EnvironmentView(msgspec.Struct, frozen=True):
    """`options` is the JSON schema of an object whose properties are the environment's options."""

    name: str
    version: str
    options: dict[str, Json]


class EnvironmentController(Controller):
    path = "/environments"
    tags = ("Training",)
    opt = {"scope": ANY_KEY}  # noqa: RUF012

    @get(summary="List environments", responses=problems(401))
    async def index(self, session: Db) -> list[EnvironmentView]:
        """Those that live workers have reported; empty until the first one has. A setting names one as
        `name?option=value&option=value`.
        """
        found = await environments.installed(session)
        return [EnvironmentView(each.name, each.version, each.options) for each in found]


async def refuse_unknown(session: AsyncSession, settings: RunSettings) -> None:
    """Raises InvalidError where the settings name an environment, or an option of it, that no worker has."""
    if settings.environment:
        check_environment(settings.environment, await environments.installed(session))
