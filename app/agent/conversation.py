"""What the policy of a rollout reads and writes: token ids on a model server, or messages with a hosted model."""

from collections.abc import Callable, Sequence
from typing import Protocol

from app.agent.action import extract_code, is_closed, through_code
from app.agent.chat import Chat, Prompt
from app.agent.complete_turn import complete_turn
from app.agent.generation_span import answer_attributes, chat_span, completion_attributes, generation_span
from app.base.values import CountedTokens, Turn
from app.engine.protocol import ChatAnswer, ChatModel, Engine, Sampling
from app.engine.tokenizer import ChatTokenizer, Message

_CHARACTERS = 4  # of a token, where nobody counts them
_BYTES = 3  # of a token of code, or of any writing: not to take an answer for shorter than it is
_FENCE = "\n```"


class Conversation(Protocol):
    """All turns of one rollout, in order. A turn that an earlier process recorded is added as it is."""

    @property
    def max_length(self) -> int | None:
        """Tokens of a sequence, prompt included; None where nobody knows."""
        ...

    def prompt(self) -> int:
        """Render the prompt of the next turn. Its length in tokens, estimated for a hosted model."""
        ...

    async def sample(self, *, max_tokens: int, temperature: float, seed: int) -> Turn:
        """The policy's answer to the prompt, which has not been executed. Raises EngineError."""
        ...

    def add(self, turn: Turn) -> None:
        """Append an answer and its observation."""
        ...


class TokenConversation:
    """The policy reads back exactly the ids it sampled."""

    def __init__(
        self,
        engine: Engine,
        model: str,
        tokenizer: ChatTokenizer,
        opening: Sequence[Message],
        stop_strings: tuple[str, ...],
        longest: Callable[[], int],
    ) -> None:
        self._engine, self._model, self._tokenizer = engine, model, tokenizer
        self._stop_strings, self._longest = stop_strings, longest
        self._chat = Chat(tokenizer, opening)
        self._prompt = Prompt((), (), extends=False)

    @property
    def max_length(self) -> int:
        return self._longest()

    def prompt(self) -> int:
        self._prompt = self._chat.prompt()
        return len(self._prompt.ids)

    async def sample(self, *, max_tokens: int, temperature: float, seed: int) -> Turn:
        prompt, model = self._prompt, self._model
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=self._tokenizer.stop_ids,
            stop_strings=self._stop_strings,
        )
        with generation_span(prompt.ids, model, sampling) as generation:
            completion = await complete_turn(self._engine, prompt, model, sampling, self._chat)
            generation.set(completion_attributes(completion))
        return Turn(
            context_ids=prompt.context_ids,
            sampled_ids=completion.ids,
            logprobs=completion.logprobs,
            text=self._chat.text_of(completion.ids),
            opened=prompt.opened,
            finish=completion.finish,
            extends=prompt.extends,
        )

    def add(self, turn: Turn) -> None:
        self._chat.add(turn)


class MessageConversation:
    """A hosted model takes messages and returns text: no ids, no logprobs, no seed."""

    def __init__(
        self, model: ChatModel, name: str, opening: Sequence[Message], stop_strings: tuple[str, ...]
    ) -> None:
        self._model, self._name, self._stop_strings = model, name, stop_strings
        self._messages = list(opening)
        self._counted, self._uncounted = 0, 0  # tokens up to an answer, and the number of messages up to it

    @property
    def max_length(self) -> int | None:
        return self._model.context_length

    def prompt(self) -> int:
        new = self._messages[self._uncounted :]
        return self._counted + sum(len(each.content) for each in new) // _CHARACTERS

    async def sample(self, *, max_tokens: int, temperature: float, seed: int) -> Turn:  # noqa: ARG002
        """An answer without code is asked for again without stop strings: it may have ended at a fence that opened
        its code.
        """
        with chat_span(self._name, max_tokens, temperature) as generation:
            answer = await self._ask(max_tokens, temperature, self._stop_strings)
            used = answer.tokens
            left = max_tokens - used.generated
            if answer.finish == "stop" and extract_code(answer.text) is None and self._stop_strings and left > 0:
                answer = await self._ask(left, temperature, ())
                used += answer.tokens
            generation.set(answer_attributes(used, answer.finish))
        return Turn(
            context_ids=(),
            sampled_ids=(),
            logprobs=(),
            text=_ended(answer),
            thought=answer.thought,
            finish=answer.finish,
            counted=CountedTokens(
                prompt=used.prompt,
                generated=used.generated,
                estimated=used.estimated,
                context=answer.tokens.prompt,
            ),
        )

    async def _ask(self, max_tokens: int, temperature: float, stop_strings: Sequence[str]) -> ChatAnswer:
        return await self._model.answer(
            self._messages, max_tokens=max_tokens, temperature=temperature, stop_strings=stop_strings
        )

    def add(self, turn: Turn) -> None:
        """What is sent from now on counts: the text, without a thought beside it or what followed its code."""
        self._messages.append(Message("assistant", turn.text))
        if turn.counted is not None and turn.counted.context:
            text = min(turn.counted.generated, -(-len(turn.text.encode(errors="replace")) // _BYTES))
            self._counted, self._uncounted = turn.counted.context + text, len(self._messages)
        self._messages.append(Message("user", turn.observation))


def _ended(answer: ChatAnswer) -> str:
    """The text up to the end of its code, with the fence at which it stopped."""
    text = through_code(answer.text)
    if answer.finish == "stop" and "```" in text and extract_code(text) is not None and not is_closed(text):
        return f"{text.rstrip()}{_FENCE}"
    return text
