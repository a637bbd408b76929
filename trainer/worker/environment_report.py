"""Report which environments this worker has installed, so that the API can refuse others at once."""

import asyncio
import socket
from importlib.metadata import EntryPoint

import structlog

from app.db import environments
from app.db.database import Sessions
from app.plugins import registry
from app.plugins.installed_environments import EnvironmentInfo
from app.plugins.plugin_options import options_schema
from trainer.environment import GROUP

log = structlog.get_logger(__name__)


class EnvironmentReport:
    """The environments of this process, imported once, reported under the host's name."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._environments: list[EnvironmentInfo] | None = None

    async def send(self) -> None:
        if self._environments is None:
            self._environments = await asyncio.to_thread(installed_environments)
        async with self._sessions.begin() as session:
            await environments.report(session, socket.gethostname(), self._environments)


def installed_environments() -> list[EnvironmentInfo]:
    """The environments of installed distributions. One that cannot be loaded is logged and left out."""
    found = (_info(registry.find(GROUP, name)) for name in registry.names(GROUP))
    return [each for each in found if each is not None]


def _info(registration: EntryPoint) -> EnvironmentInfo | None:
    try:
        schema = options_schema(registration.load())
    except Exception:  # code of other packages: a broken one must not stop the worker
        log.exception("an environment cannot be loaded", environment=registration.name)
        return None
    version = registration.dist.version if registration.dist else ""
    return EnvironmentInfo(registration.name, version, schema)
