"""Whether calls that were recorded under earlier releases still tell what the APIs of today answer."""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.builtin import with_builtins
from app.apis.catalog import Catalog
from app.apis.fingerprint import shapes
from app.db import releases, tables
from app.db.database import Sessions
from app.records import Call
from app.release.catalogs import Catalogs
from app.release.tool_documents import api_documents


class PastOperations:
    """The operations of earlier releases of a project, compared with those of its active one."""

    def __init__(self, sessions: Sessions, active: tables.Release) -> None:
        self._catalogs = Catalogs(sessions)
        self._active = active
        self._shapes: dict[str | None, Mapping[str, str]] = {}  # by the hash of the documents

    async def are_present(self, session: AsyncSession, release_id: UUID, calls: Sequence[Call]) -> bool:
        """Whether the operations that these calls of a task reached are what they were. Words for people do not
        count.
        """
        release = await releases.get(session, release_id)
        if release.tools == self._active.tools:
            return True
        then, now = await self._of(session, release), await self._of(session, self._active)
        reached = {call.api for call in calls if call.error is None or call.api in then}
        return all(api in now and then.get(api) == now[api] for api in reached)

    async def _of(self, session: AsyncSession, release: tables.Release) -> Mapping[str, str]:
        if release.tools not in self._shapes:
            catalog = await self._catalogs.of(await api_documents(session, release))
            self._shapes[release.tools] = await asyncio.to_thread(_shapes, catalog)
        return self._shapes[release.tools]


def _shapes(catalog: Catalog) -> dict[str, str]:
    """By "app.operation"."""
    apps = with_builtins(catalog).apps.values()
    return {f"{app.name}.{name}": shape for app in apps for name, shape in shapes(app).items()}
