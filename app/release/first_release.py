"""The first release of a project: the base model, with the adapter that comes with it, if one does; or the hosted
model that the settings name.

It is a release like any other: rolled back to, trained from, replaced. Only new projects get it, so a newer
version of this software changes nothing that is served.
"""

import asyncio
import re
from pathlib import Path
from typing import Self
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncSession

from app.adapters.bundled_adapter import BundledAdapter
from app.adapters.store import AdapterStore
from app.base.settings import Settings
from app.base.values import hosted
from app.db import adapters, hosted_models, tables
from app.engine.adapter_files import AdapterFiles
from app.projects import store as projects


class FirstRelease:
    """Creates projects. Reads the adapter and the base model once."""

    def __init__(
        self,
        bundled: BundledAdapter | None,
        model_dir: Path,
        store: AdapterStore,
        *,
        base: str,
        hosted: tuple[str, str] | None = None,
    ) -> None:
        """`base` is the name of the base model in the deployment, `hosted` the URL and the name of one there."""
        self._hosted = hosted
        self._bundled, self._model_dir, self._store, self._base = bundled, model_dir, store, base
        self._verified: AdapterFiles | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises ModelError for a model that is not here."""
        store = AdapterStore(settings.adapters_dir, settings.adapter_store)
        hosted = (settings.model_url, settings.model) if settings.model_url else None
        bundled = None if hosted else BundledAdapter.of(settings.model_dir)
        return cls(bundled, settings.model_dir, store, base=settings.local_model, hosted=hosted)

    async def create_project(self, session: AsyncSession, name: str) -> tables.Project:
        """Create a project, whose release 1 is active. Call it without a transaction: files are read first.

        Raises ConflictError if the name is taken, AdapterError for an adapter that must not be served, and
        StorageError if it cannot be stored.
        """
        if self._hosted is not None:
            return await _create_hosted(session, name, *self._hosted)
        if self._bundled is None:
            return await projects.create(session, name)
        if self._verified is None:
            self._verified = await asyncio.to_thread(self._bundled.verify, self._model_dir)
        model, rank = await self._store.import_adapter(self._bundled.path), self._verified.rank
        await adapters.put(session, model, base=self._base, rank=rank, project_id=None)
        return await projects.create(session, name, model, {"reason": f"it comes with {self._bundled.model}"})


async def _create_hosted(session: AsyncSession, name: str, url: str, model: str) -> tables.Project:
    """The model's key stays in the settings."""
    model_id, known = uuid4(), await hosted_models.known(session, url, model)
    project = await projects.create(session, name, hosted(model_id), {"reason": "SAGE_MODEL_URL names it"})
    columns = {"id": model_id, "url": url, "model": model, "trusted": True, "abilities": known}
    await hosted_models.add(session, project.id, _entry_name(model), None, **columns)
    return project


def _entry_name(model: str) -> str:
    """
    >>> _entry_name("qwen/qwen3:8b"), _entry_name("...")
    ('qwen-qwen3-8b', 'model')
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", model).lstrip("-._")[:64] or "model"
