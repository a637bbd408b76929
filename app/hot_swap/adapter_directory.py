"""Where adapters lie on this machine, and whether they are fit to be handed to a model server."""

import asyncio
from functools import cached_property
from pathlib import Path

from app.adapters.compatibility import Shapes
from app.adapters.files import AdapterFiles, base_shapes, verify
from app.adapters.store import AdapterStore


class AdapterDirectory:
    """Adapters under their hash, as the model servers read them, too."""

    def __init__(
        self, path: Path, model_dir: Path | None = None, store: AdapterStore | None = None, *, base: str = ""
    ) -> None:
        """`model_dir` holds the base model that they must fit, `base` is what the deployment calls it; `store` is
        where other hosts have theirs from.
        """
        self.path, self.base = path.absolute(), base
        self._model_dir, self._store = model_dir, store

    async def sound(self, name: str) -> AdapterFiles:
        """The adapter, after all of it was read. Raises AdapterError for one that must not be served."""
        path = await self._store.path(name) if self._store else self.path / name
        return await asyncio.to_thread(self._verify, path)

    async def share(self, name: str) -> None:
        """Other hosts can have it, too, once this returns. Raises StorageError."""
        if self._store is not None:
            await self._store.put(name)

    def _verify(self, path: Path) -> AdapterFiles:
        return verify(path, self._shapes)

    @cached_property
    def _shapes(self) -> Shapes | None:
        return base_shapes(self._model_dir) if self._model_dir else None
