"""The adapter directory of this machine: verifies adapters before a model server loads them."""

import asyncio
from functools import cached_property
from pathlib import Path

from app.adapters.store import AdapterStore
from app.engine.adapter_files import AdapterFiles, Shapes, base_shapes, verify


class AdapterDirectory:
    """Adapters by content hash. Model servers read the same directory."""

    def __init__(
        self, path: Path, model_dir: Path | None = None, store: AdapterStore | None = None, *, base: str = ""
    ) -> None:
        """`model_dir` holds the base model that adapters must fit, `base` is its name in the deployment; `store`
        holds adapters of other hosts.
        """
        self.path, self.base = path.absolute(), base
        self._model_dir, self._store = model_dir, store

    async def verified(self, name: str) -> AdapterFiles:
        """Read and check the whole adapter. Raises AdapterError for one that must not be served."""
        path = await self._store.fetch(name) if self._store else self.path / name
        return await asyncio.to_thread(self._verify, path)

    async def publish(self, name: str) -> None:
        """Make the adapter available to other hosts. Raises StorageError."""
        if self._store is not None:
            await self._store.put(name)

    def _verify(self, path: Path) -> AdapterFiles:
        return verify(path, self._shapes)

    @cached_property
    def _shapes(self) -> Shapes | None:
        return base_shapes(self._model_dir) if self._model_dir else None
