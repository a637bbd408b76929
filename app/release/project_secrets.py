"""The stored secrets of one project, for the bound parameters of its APIs."""

from uuid import UUID

import structlog

from app.base.errors import HostError, NotFoundError, SettingError
from app.db.database import Sessions
from app.projects import secrets

log = structlog.get_logger(__name__)


class ProjectSecrets:
    """Fulfils `SecretStore` for one task. Each secret is read, and its use recorded, once."""

    def __init__(self, sessions: Sessions, project_id: UUID) -> None:
        self._sessions = sessions
        self._project_id = project_id
        self._values: dict[str, str] = {}

    async def value(self, name: str) -> str:
        if name not in self._values:
            self._values[name] = await self._read(name)
        return self._values[name]

    async def _read(self, name: str) -> str:
        try:
            async with self._sessions.begin() as session:
                return await secrets.use(session, self._project_id, name)
        except NotFoundError as error:
            raise HostError("ApiError", f"the secret {name!r} that this call needs is not stored") from error
        except SettingError as error:
            log.error("a secret cannot be read", secret=name, cause=str(error))
            raise HostError("ApiError", f"the server cannot read the secret {name!r}") from error
