"""The first release of a project: the base model, with the adapter that comes with it, if one does.

It is a release like any other: rolled back to, trained from, replaced. Only new projects get it, so a newer
version of this software changes nothing that is served.
"""

import asyncio
from pathlib import Path
from typing import Self

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.bundled_adapter import BundledAdapter
from app.adapters.files import AdapterFiles
from app.adapters.store import AdapterStore
from app.db import adapters, models, projects
from app.settings import Settings


class FirstRelease:
    """Creates projects. Reads the adapter and the base model once."""

    def __init__(self, bundled: BundledAdapter | None, model_dir: Path, store: AdapterStore, *, base: str) -> None:
        """`base` is the name of the base model in the deployment."""
        self._bundled, self._model_dir, self._store, self._base = bundled, model_dir, store, base
        self._verified: AdapterFiles | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises ModelError for a model that is not here."""
        store = AdapterStore(settings.adapters_dir, settings.adapter_store)
        bundled = BundledAdapter.of(settings.model_dir)
        return cls(bundled, settings.model_dir, store, base=settings.model)

    async def create_project(self, session: AsyncSession, name: str) -> models.Project:
        """Create a project, whose release 1 is active. Call it without a transaction: files are read first.

        Raises ConflictError if the name is taken, AdapterError for an adapter that must not be served, and
        StorageError if it cannot be stored.
        """
        if self._bundled is None:
            return await projects.create(session, name)
        if self._verified is None:
            self._verified = await asyncio.to_thread(self._bundled.verify, self._model_dir)
        model, rank = await self._store.import_adapter(self._bundled.path), self._verified.rank
        await adapters.put(session, model, base=self._base, rank=rank, project_id=None)
        return await projects.create(session, name, model, {"reason": f"it comes with {self._bundled.model}"})
