"""The engine and embedder protocols. An engine knows tokens and adapters, but no tasks, skills or SQL."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]  # (D,), length 1


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn. top_p, top_k and min_p stay off: they would bias importance weights."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()  # the token that completes one of these in the output is the last
    allowed_token_ids: tuple[int, ...] = ()  # if any, only these may be drawn; logprobs stay unmasked


class Completion(msgspec.Struct, frozen=True):
    """One completion, as the engine reported it. Text is never tokenized a second time."""

    ids: tuple[int, ...]  # the sampled tokens, a stop token included
    logprobs: tuple[float, ...]  # log p of each, at temperature 1
    finish: str  # "stop" or "length"


class Engine(Protocol):
    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Sample one continuation from `model`: "base" or the name of a loaded adapter. Raises EngineError."""
        ...


class Embedder(Protocol):
    """Maps text to vectors. Vectors of different models are never compared."""

    @property
    def model(self) -> str: ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector of length 1 per text. Raises EngineError."""
        ...
