"""Where adapters lie on this machine, and whether they are fit to be handed to a model server."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path

from app.adapter_files import AdapterFiles, Shapes, base_shapes, verify

Fetch = Callable[[str], Awaitable[Path]]
"""Brings the adapter of that name to this machine, whole, if it is elsewhere. Raises AdapterError."""


class AdapterDirectory:
    """Adapters under their hash, as the model servers read them, too."""

    def __init__(
        self, path: Path, model_dir: Path | None = None, fetch: Fetch | None = None, *, base: str = ""
    ) -> None:
        """`model_dir` holds the base model that they must fit, `base` is what the deployment calls it; `fetch`
        knows where else they may lie.
        """
        self.path, self.base = path.absolute(), base
        self._model_dir, self._fetch = model_dir, fetch

    async def sound(self, name: str) -> AdapterFiles:
        """The adapter, after all of it was read. Raises AdapterError for one that must not be served."""
        path = await self._fetch(name) if self._fetch else self.path / name
        return await asyncio.to_thread(self._verify, path)

    def _verify(self, path: Path) -> AdapterFiles:
        return verify(path, self._shapes)

    @cached_property
    def _shapes(self) -> Shapes | None:
        return base_shapes(self._model_dir) if self._model_dir else None
