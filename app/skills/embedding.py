"""An optional embedder: without its vectors a library still retrieves by n-grams, and logs that it does."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from app.base.errors import EngineError, EngineRefusalError
from app.engine.protocol import Embedder, Vector

_RETRY_SECONDS = 30.0
_TIMEOUT_SECONDS = 10.0
_CHARS = 2_000  # a text is cut here: embedders read a few hundred tokens, and some refuse more
_LEAST_CHARS = 100  # of a text that is cut shorter because it was refused
_REFUSED_TEXT = {400, 413, 422}  # statuses of a server that takes other texts
_log = structlog.get_logger(__name__)

OpenEmbedder = Callable[[], Awaitable[Embedder]]
"""Returns the embedder once its server answers. Raises EngineError until then."""

Result = TypeVar("Result")


class OptionalEmbedder:
    """An embedder that may be absent, down, or not started yet. After a failure it is not called for 30 s."""

    def __init__(
        self,
        embedder: Embedder | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        open_embedder: OpenEmbedder | None = None,
    ) -> None:
        self._embedder = embedder
        self._open_embedder = open_embedder
        self._clock = clock
        self._down_until: float | None = None  # None: the last call succeeded

    @property
    def model(self) -> str | None:
        """None without an embedder, and until it has been opened."""
        return self._embedder.model if self._embedder else None

    async def open(self) -> None:
        """Try to open the embedder, if there is one and it is not open yet."""
        if self._embedder is None and self._open_embedder is not None:
            self._embedder = await self._attempt(self._open_embedder)

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector | None] | None:
        """A vector of each text; None for one that the embedder refuses, even its beginning.

        None for all while no embedder works. Each outage is logged once.
        """
        await self.open()
        if self._embedder is None or not texts:
            return None
        return await self._embed(self._embedder, [text[:_CHARS] for text in texts])

    async def _embed(self, embedder: Embedder, texts: Sequence[str]) -> Sequence[Vector | None] | None:
        """Of texts that are refused each half is tried, down to one text, and then its beginning."""
        found = await self._attempt(lambda: _vectors(embedder, texts))
        if found is None or found:
            return found
        if len(texts) > 1:
            middle = len(texts) // 2
            halves = [await self._embed(embedder, half) for half in (texts[:middle], texts[middle:])]
            return None if halves[0] is None or halves[1] is None else [*halves[0], *halves[1]]
        length = len(texts[0]) // 2
        return await self._embed(embedder, [texts[0][:length]]) if length >= _LEAST_CHARS else [None]

    async def _attempt(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        if self._down_until is not None and self._clock() < self._down_until:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                result = await work()
        except (EngineError, TimeoutError) as error:
            self._mark_down(str(error) or f"no answer within {_TIMEOUT_SECONDS:.0f} s")
            return None
        if self._down_until is not None:
            _log.info("the embedder recovered")
        self._down_until = None
        return result

    def _mark_down(self, reason: str) -> None:
        if self._down_until is None:
            _log.warning("the embedder failed: skills are found by n-grams only", reason=reason)
        self._down_until = self._clock() + _RETRY_SECONDS


async def _vectors(embedder: Embedder, texts: Sequence[str]) -> Sequence[Vector]:
    """Empty if the embedder refuses these texts. Raises EngineError."""
    try:
        return await embedder.embed(texts)
    except EngineRefusalError as error:
        if error.code in _REFUSED_TEXT:
            return []
        raise
