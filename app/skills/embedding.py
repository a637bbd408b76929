"""Vectors where they can be had. A library without them still works by n-grams, and says so."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from app.engine.protocol import Embedder, Vector
from app.errors import EngineError

_PAUSE_SECONDS = 30.0
_PATIENCE_SECONDS = 10.0
_CHARS = 2_000  # of a text that count: embedders read a few hundred tokens, and some refuse more
_log = structlog.get_logger(__name__)

Opening = Callable[[], Awaitable[Embedder]]
"""Gives the embedder once its server answers. Raises EngineError while it does not."""

Result = TypeVar("Result")


class Embedding:
    """An embedder that may be absent or down, or not there yet. After a failure it is left alone for a while."""

    def __init__(
        self,
        embedder: Embedder | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        opening: Opening | None = None,
    ) -> None:
        self._embedder = embedder
        self._opening = opening
        self._clock = clock
        self._down_until: float | None = None  # None: it worked the last time

    @property
    def model(self) -> str | None:
        """None: there is no embedder, or none so far."""
        return self._embedder.model if self._embedder else None

    async def open(self) -> None:
        """Try to, where there is no embedder so far. It costs nothing where there is one, or none can be had."""
        if self._embedder is None and self._opening is not None:
            self._embedder = await self._attempt(self._opening)

    async def embed(self, texts: Sequence[str]) -> list[Vector] | None:
        """One vector per text, or None while there is no embedder that works. Each outage is logged once."""
        await self.open()
        embedder = self._embedder
        if embedder is None or not texts:
            return None
        return await self._attempt(lambda: embedder.embed([text[:_CHARS] for text in texts]))

    async def _attempt(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        if self._down_until is not None and self._clock() < self._down_until:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                result = await work()
        except (EngineError, TimeoutError) as error:
            self._give_up(str(error) or f"no answer within {_PATIENCE_SECONDS:.0f} s")
            return None
        if self._down_until is not None:
            _log.info("the embedder works again")
        self._down_until = None
        return result

    def _give_up(self, reason: str) -> None:
        if self._down_until is None:
            _log.warning("the embedder does not work: skills are found by n-grams alone", reason=reason)
        self._down_until = self._clock() + _PAUSE_SECONDS
