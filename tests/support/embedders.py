"""Embedders whose vectors can be worked out by hand."""

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from app.base.errors import EngineError, EngineRefusalError
from app.engine.protocol import Vector

WORDS = ["archive", "delete", "mail", "note", "travel"]


class WordEmbedder:
    """Counts a few words, by their beginnings. `down` makes it fail.

    A request with a text that `is_refused` says yes to is refused, with the status `refusal`.
    """

    def __init__(self, model: str = "words") -> None:
        self.model = model
        self.is_refused: Callable[[str], bool] = lambda _: False
        self.refusal = 400
        self.down = False
        self.asked: list[str] = []
        self.requests = 0
        self.reached = asyncio.Event()  # set by the first request
        self.held: asyncio.Event | None = None  # if given, requests wait until it is set

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        self.asked += texts
        self.requests += 1
        self.reached.set()
        if self.held is not None:
            await self.held.wait()
        if self.down:
            raise EngineError("no embedder listens there")
        if any(map(self.is_refused, texts)):
            raise EngineRefusalError("this model takes shorter texts", self.refusal)
        return [_vector(text) for text in texts]


def _vector(text: str) -> Vector:
    counts = np.array([text.lower().count(word) for word in WORDS], np.float32) + 1e-3
    return counts / np.float32(np.linalg.norm(counts))
