"""Model servers that serving, or other runs, may use as well."""

from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog

from app.engine.http_engine import HttpEngine
from app.engine.protocol import Completion, Sampling
from app.errors import EngineError, EngineRefusalError

log = structlog.get_logger(__name__)


class SharedServers(HttpEngine):
    """Leaves the servers with the adapters that they had before: nobody else unloads those of a run."""

    def __init__(self, urls: Sequence[str], **settings: Any) -> None:
        super().__init__(urls, **settings)
        self._own: set[str] = set()  # adapters that no server had

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Loads an adapter again that another process has unloaded."""
        try:
            return await super().complete(prompt_ids, model=model, sampling=sampling)
        except EngineRefusalError as error:
            if error.code != HTTPStatus.NOT_FOUND or model not in self._loaded:
                raise
        await self.load_adapter(model, self._loaded[model])
        return await super().complete(prompt_ids, model=model, sampling=sampling)

    async def load_adapter(self, name: str, path: Path) -> None:
        if name not in await self.loaded():
            self._own.add(name)
        await super().load_adapter(name, path)

    async def unload_adapter(self, name: str) -> None:
        """One that was there before stays."""
        if name in self._own:
            await super().unload_adapter(name)
            self._own.remove(name)
        else:
            self._loaded.pop(name, None)

    async def close(self) -> None:
        for name in sorted(self._own):
            try:
                await self.unload_adapter(name)
            except EngineError as error:
                log.warning("an adapter stays loaded", model=name, cause=str(error))
        await super().close()
