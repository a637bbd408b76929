"""The embedded server's embedding model in process, for a trainer without a server."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from app.engine.protocol import Vector
from app.model_server.embeddings import EmbeddingModel


class LocalEmbedder:
    """Implements `Embedder`."""

    def __init__(self, embeddings: EmbeddingModel) -> None:
        self._embeddings = embeddings

    @property
    def model(self) -> str:
        return self._embeddings.name

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        vectors, _ = await self._embeddings.embed(list(texts))
        return [np.asarray(vector, np.float32) for vector in vectors]


@asynccontextmanager
async def local_embedder(device: str = "cpu") -> AsyncIterator[LocalEmbedder]:
    """All-MiniLM-L6-v2, loaded; its vectors equal those of the server.

    A library waits for vectors for seconds only. If they came with the loading, the policy that is evaluated first
    would find its skills without.
    """
    embeddings = EmbeddingModel("minilm", device)
    try:
        embedder = LocalEmbedder(embeddings)
        await embedder.embed(["ready"])
        yield embedder
    finally:
        embeddings.close()
