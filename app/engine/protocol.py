"""The doors to a language model: an engine takes tokens and gives tokens with logprobs, a hosted model takes
messages and gives text, an embedder gives vectors. Also the retries that keep a task from failing when an
engine is down for a moment.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from app.base.errors import EngineError, EngineRefusalError
from app.engine.tokenizer import Message

Vector = NDArray[np.float32]  # (D,), length 1

log = structlog.get_logger(__name__)

MAX_BROKEN = 3
"""Answers to one request, or in one task, that may break off. Whoever meets the last gives up."""

Told: TypeAlias = Callable[[str], Awaitable[None]]
"""Gets the reason of a failure after which a request is sent again, unless that is at once. Raises nothing."""


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


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a request used, as the endpoint counted it, or as estimated where it does not."""

    prompt: int = 0
    generated: int = 0  # thoughts included
    estimated: bool = False

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(
            prompt=self.prompt + other.prompt,
            generated=self.generated + other.generated,
            estimated=self.estimated or other.estimated,
        )

    def __sub__(self, other: "Tokens") -> "Tokens":
        """At least 0."""
        return Tokens(
            prompt=max(self.prompt - other.prompt, 0),
            generated=max(self.generated - other.generated, 0),
            estimated=self.estimated,
        )


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The next message. A `thought` that the endpoint put beside the text is not part of it."""

    text: str
    thought: str = ""
    finish: Literal["stop", "length"] = "stop"
    tokens: Tokens = Tokens()


class ChatModel(Protocol):
    """One model of one endpoint, with what is known of its abilities."""

    @property
    def context_length(self) -> int | None:
        """Tokens of a conversation at most, the answer included, as far as the endpoint tells."""
        ...

    @property
    def lost(self) -> Tokens:
        """What requests that brought no answer have used so far, as their endpoint may have billed them."""
        ...

    @property
    def thinks(self) -> bool:
        """Whether thoughts were seen."""
        ...

    async def answer(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        stop_strings: Sequence[str] = (),
    ) -> ChatAnswer:
        """The text ends before the first stop string, if one comes, also where the endpoint knows none.

        `temperature` is left out where the model takes none. A busy endpoint is asked again, as late as its
        `Retry-After` says, and after an answer that broke off up to `MAX_BROKEN` times in all: each may have been
        billed, and is in `lost`. Raises EngineRefusalError, with the endpoint's own reason, if another try is
        useless, otherwise EngineError.
        """
        ...


OpenHosted: TypeAlias = Callable[[UUID], AbstractAsyncContextManager[ChatModel]]
"""Opens a hosted model by its id. Raises NotFoundError if its entry is gone."""


class OpenTelling(Protocol):
    """As `OpenHosted`, for whoever is to be told of failures while the model is asked again."""

    def __call__(
        self, model_id: UUID, /, *, told: Told | None = None
    ) -> AbstractAsyncContextManager[ChatModel]: ...


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
