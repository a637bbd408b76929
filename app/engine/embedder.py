"""Text embeddings from vLLM's `/v1/embeddings`, or the embedded server's."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from app.engine.protocol import Vector
from app.engine.vllm_api import EmbeddingReply, ModelList, open_client, send
from app.errors import EngineError

_AT_ONCE = 64
_TIMEOUT = 600.0


class HttpEmbedder:
    """Embeds with one model. `open` asks the server for the model's name if none is given."""

    def __init__(self, url: str, model: str = "") -> None:
        self.url, self._model = url.rstrip("/"), model
        self._http = open_client(_AT_ONCE, _TIMEOUT)

    @classmethod
    async def open(cls, url: str, model: str = "") -> Self:
        """Raises EngineError if the server is unreachable, or serves several models and none was named."""
        embedder = cls(url, model)
        try:
            return await embedder.resolve_model()
        except EngineError:
            await embedder.close()
            raise

    async def resolve_model(self) -> Self:
        """Look up the model's name. Raises EngineError as `open` does; it may then be tried again."""
        self._model = self._model or await self._only_model()
        return self

    @property
    def model(self) -> str:
        return self._model

    async def close(self) -> None:
        await self._http.aclose()

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        body = {"model": self._model, "input": list(texts), "encoding_format": "float"}
        answer: EmbeddingReply = await send(self._http, "POST", f"{self.url}/v1/embeddings", EmbeddingReply, body)
        rows = {row.index: row.embedding for row in answer.data}
        if sorted(rows) != list(range(len(texts))):
            raise EngineError(f"{self.url} returned {len(answer.data)} vectors for {len(texts)} texts.")
        return [_unit(rows[position]) for position in range(len(texts))]

    async def _only_model(self) -> str:
        answer: ModelList = await send(self._http, "GET", f"{self.url}/v1/models", ModelList)
        models = answer.data
        candidates = [model.id for model in models if model.task == "embed"] or [model.id for model in models]
        if len(candidates) != 1:
            raise EngineError(f"{self.url} serves {', '.join(candidates) or 'nothing'}: name the embedding model.")
        return candidates[0]


def _unit(values: list[float]) -> Vector:
    vector = np.asarray(values, np.float32)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0:
        raise EngineError("the embedding model returned a zero or non-finite vector.")
    return np.asarray(vector / length, np.float32)
