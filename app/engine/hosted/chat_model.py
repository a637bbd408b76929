"""A hosted model: an endpoint of chat completions, which takes messages and returns text, not tokens."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol, TypeAlias
from uuid import UUID

import msgspec

from app.engine.tokenizer import Message

MAX_BROKEN = 3
"""Answers to one request, or in one task, that may break off. Whoever meets the last gives up."""


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


Told: TypeAlias = Callable[[str], Awaitable[None]]
"""Gets the reason of a failure after which a request is sent again, unless that is at once. Raises nothing."""


OpenHosted: TypeAlias = Callable[[UUID], AbstractAsyncContextManager[ChatModel]]
"""Opens a hosted model by its id. Raises NotFoundError if its entry is gone."""


class OpenTelling(Protocol):
    """As `OpenHosted`, for whoever is to be told of failures while the model is asked again."""

    def __call__(
        self, model_id: UUID, /, *, told: Told | None = None
    ) -> AbstractAsyncContextManager[ChatModel]: ...
