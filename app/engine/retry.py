"""Retries, so that an engine that is down for a moment fails no task."""

import asyncio
from collections.abc import Sequence

import structlog

from app.engine.protocol import Completion, Engine, Sampling
from app.errors import EngineError, EngineRefusalError

log = structlog.get_logger(__name__)


class RetryingEngine:
    """Retries with exponential backoff for `seconds`. A refusal is final: a retry would not help."""

    def __init__(self, engine: Engine, *, seconds: float = 120.0, pause: float = 0.25) -> None:
        self._engine = engine
        self._seconds = seconds
        self._pause = pause

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Raises the last EngineError when the time is up."""
        clock = asyncio.get_running_loop().time
        until, pause = clock() + self._seconds, self._pause
        while True:
            try:
                return await self._engine.complete(prompt_ids, model=model, sampling=sampling)
            except EngineRefusalError:
                raise
            except EngineError as error:
                if clock() + pause > until:
                    raise
                log.warning("the engine does not answer, retrying", cause=str(error), seconds=pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 8.0)
