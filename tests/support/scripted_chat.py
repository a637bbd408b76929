"""A hosted model with scripted answers. No network."""

from collections.abc import Callable, Sequence

from app.base.errors import EngineError, EngineRefusalError
from app.engine.protocol import ChatAnswer, Tokens
from app.engine.tokenizer import Message

Said = str | ChatAnswer | EngineError
PROMPT_TOKENS = 100  # that each request counts
GENERATED_TOKENS = 10


class ScriptedChatModel:
    """Fulfils `ChatModel`. Returns the given answers one by one, or those of the given function of the number of
    answers in the messages. A text is cut at the first stop string.
    """

    def __init__(
        self,
        *answers: Said,
        script: Callable[[Sequence[Message], int], Said] | None = None,
        context_length: int | None = None,
    ) -> None:
        self.requests: list[list[Message]] = []
        self.max_tokens: list[int] = []
        self.stop_strings: list[tuple[str, ...]] = []
        self.lost = Tokens()
        self._thoughts: list[str] = []  # that it has answered with
        self._answers, self._script, self._context_length = list(answers), script, context_length

    @property
    def context_length(self) -> int | None:
        return self._context_length

    @property
    def thinks(self) -> bool:
        return any(self._thoughts)

    async def answer(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,  # noqa: ARG002
        stop_strings: Sequence[str] = (),
    ) -> ChatAnswer:
        self.requests.append(list(messages))
        self.max_tokens.append(max_tokens)
        self.stop_strings.append(tuple(stop_strings))
        said = await self._next(messages)
        if isinstance(said, EngineError):
            raise said
        if isinstance(said, str):
            said = ChatAnswer(text=said, tokens=Tokens(prompt=PROMPT_TOKENS, generated=GENERATED_TOKENS))
        self._thoughts.append(said.thought)
        ends = [place for stop in stop_strings if (place := said.text.find(stop)) >= 0]
        if not ends:
            return said
        return ChatAnswer(text=said.text[: min(ends)], thought=said.thought, tokens=said.tokens)

    async def _next(self, messages: Sequence[Message]) -> Said:
        if self._script is not None:
            return self._script(messages, sum(each.role == "assistant" for each in messages))
        return self._answers.pop(0) if self._answers else EngineRefusalError("the script has no more answers")
