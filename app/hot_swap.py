"""Hot swap: the model servers have the weights that a task is pinned to before its first token is asked for.

Adapters are directories named by their content, so what a name stands for never changes, and loading one again
changes nothing. A rollout keeps the adapter it began with: nothing is unloaded while there is room.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Self

import structlog
from sqlalchemy.exc import DBAPIError

from app.db import adapters
from app.db.session import Sessions
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, Sampling
from app.errors import AdapterError, AppError, EngineError, EngineRefusalError

log = structlog.get_logger(__name__)

BASE = "base"
_TRIES = 3  # of a completion whose adapter was lost in between


class HotSwap:
    """An engine that loads what it lacks; as a context manager also what is activated, ahead of its first task."""

    def __init__(self, engine: HttpEngine, sessions: Sessions, directory: Path) -> None:
        self._engine = engine
        self._sessions = sessions
        self._directory = directory.absolute()  # the model servers read them by this path
        self._loaded: set[str] = set()  # a hint: the servers know, and say 404
        self._loading = asyncio.Lock()
        self._news = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._following = asyncio.create_task(self._follow(), name="hot swap")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    def wake(self) -> None:
        """A release may have been activated. Missing a call costs its first task a moment."""
        self._news.set()

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Raises AdapterError where the adapter cannot be served, and what the engine raises."""
        for _ in range(_TRIES):
            if model not in self._loaded:
                await self.load(model)
            try:
                return await self._engine.complete(prompt_ids, model=model, sampling=sampling)
            except EngineRefusalError as error:
                if error.code != HTTPStatus.NOT_FOUND or model == BASE:
                    raise
                self._loaded.discard(model)  # the server was restarted, or made room for another
        raise EngineError(
            f"the model servers lose adapter {model} as soon as it is loaded: give them more --max-loras"
        )

    async def load(self, model: str) -> None:
        """All servers can answer as `model` when this returns; where one of them cannot, none has it.

        Raises AdapterError for weights that are missing or refused, EngineError where a server is down or full.
        """
        if model == BASE:
            return
        async with self._loading:
            path = self._directory / model
            if not (path / "adapter_config.json").is_file():
                raise AdapterError(f"there is no adapter in {path}: put it back, or activate another release")
            await self._load(model, path)
            self._loaded.add(model)

    async def _load(self, model: str, path: Path) -> None:
        """Adapters nobody needs make room, one after the other, and only where a server has none."""
        spare: list[str] | None = None
        while True:
            try:
                return await self._engine.load_adapter(model, path)
            except EngineRefusalError as error:
                if error.code != HTTPStatus.CONFLICT:
                    raise AdapterError(f"the adapter cannot be served: {error}") from error
                spare = await self._spare() if spare is None else spare
                if not spare:
                    raise EngineError(f"all adapters loaded are in use, and there is no room: {error}") from error
            await self._unload(spare.pop(0))

    async def _spare(self) -> list[str]:
        """Loaded adapters that no unfinished task needs and no candidate; those of active releases come last."""
        async with self._sessions() as session:
            needed, active = await adapters.needed(session), await adapters.active(session)
        loaded = [name for name in await self._engine.loaded() if name != BASE and name not in needed]
        return sorted(loaded, key=active.__contains__)

    async def _unload(self, model: str) -> None:
        self._loaded.discard(model)
        await self._engine.unload_adapter(model)
        log.info("an adapter made room", model=model)

    async def _follow(self) -> None:
        while True:
            self._news.clear()  # before looking: what comes meanwhile is news again
            try:
                async with self._sessions() as session:
                    wanted = await adapters.active(session)
                for model in sorted(wanted):
                    await self._load_ahead(model)
            except (DBAPIError, OSError) as error:
                log.warning("active releases cannot be read", cause=str(error).partition("\n")[0])
            await self._news.wait()

    async def _load_ahead(self, model: str) -> None:
        try:
            await self.load(model)
        except AppError as error:
            log.warning("an active adapter is not loaded yet, its first task will ask again", cause=str(error))
