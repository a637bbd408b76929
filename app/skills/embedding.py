"""Vectors where they can be had. A library without them still works by n-grams, and says so."""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from app.engine.protocol import Embedder, Vector
from app.errors import EngineError

_PAUSE_SECONDS = 30.0
_PATIENCE_SECONDS = 10.0
_CHARS = 2_000  # of a text that count: embedders read a few hundred tokens, and some refuse more
_log = structlog.get_logger(__name__)


class Embedding:
    """An embedder that may be absent or down. After a failure it is left alone for a while."""

    def __init__(self, embedder: Embedder | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._embedder = embedder
        self._clock = clock
        self._down_until: float | None = None  # None: it worked the last time

    @property
    def model(self) -> str | None:
        return self._embedder.model if self._embedder else None

    async def embed(self, texts: Sequence[str]) -> list[Vector] | None:
        """One vector per text, or None while there is no embedder that works. Each outage is logged once."""
        if self._embedder is None or not texts:
            return None
        if self._down_until is not None and self._clock() < self._down_until:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                vectors = await self._embedder.embed([text[:_CHARS] for text in texts])
        except (EngineError, TimeoutError) as error:
            self._give_up(str(error) or f"no answer within {_PATIENCE_SECONDS:.0f} s")
            return None
        if self._down_until is not None:
            _log.info("the embedder works again")
        self._down_until = None
        return vectors

    def _give_up(self, reason: str) -> None:
        if self._down_until is None:
            _log.warning("the embedder does not work: skills are found by n-grams alone", reason=reason)
        self._down_until = self._clock() + _PAUSE_SECONDS
