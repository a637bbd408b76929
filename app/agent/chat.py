"""What the policy of a rollout reads and writes: token ids on a model server, or messages with a hosted model.

A conversation with a model server is append-only: the policy reads back exactly the ids that it sampled. Spans
of generations follow OpenTelemetry's GenAI semantic conventions; they hold no text and no token.
"""

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from app.agent.action import extract_code, is_closed, through_code
from app.base.telemetry import Attributes, Span, span
from app.base.values import CountedTokens, Turn
from app.engine.protocol import ChatAnswer, ChatModel, Completion, Engine, Sampling, Tokens
from app.engine.tokenizer import ChatTokenizer, Message, opened_thought

_CHARACTERS = 4  # of a token, where nobody counts them
_BYTES = 3  # of a token of code, or of any writing: not to take an answer for shorter than it is
_FENCE = "\n```"


class Prompt(msgspec.Struct, frozen=True):
    """The next request to the engine."""

    ids: tuple[int, ...]
    context_ids: tuple[int, ...]  # the suffix of ids that is new since the last turn, or all of them
    extends: bool  # False: the chat template rewrote earlier messages, so all ids are new
    opened: str = ""  # the tag at its end that opens a thought


class Chat:
    """Appends what the template puts between messages. Sampled ids are kept, never re-encoded from text.

    The template may rewrite earlier turns (drop their thoughts, for example). That is detected by comparing texts:
    the conversation so far must be a prefix of what the template renders now. White space that it trims from an
    answer does not count.
    """

    def __init__(self, tokenizer: ChatTokenizer, opening: Sequence[Message]) -> None:
        self._tokenizer = tokenizer
        self._special = [
            token.content for token in tokenizer.tokenizer.get_added_tokens_decoder().values() if token.special
        ]
        self._messages = [self._plain(message.role, message.content) for message in opening]
        self._ids: tuple[int, ...] = ()
        self._rendered = ""  # the text of the ids up to the last answer
        self._answer = ""
        self._ended = False  # whether the last answer ended with a stop token

    def prompt(self) -> Prompt:
        """The prompt for the next turn."""
        text = self._tokenizer.render(self._messages, generate=True)
        suffix = self._suffix(text)
        extends = suffix is not None or not self._ids
        new = self._tokenizer.encode(text if suffix is None else suffix)
        if suffix is not None and self._ended and new and new[0] in self._tokenizer.stop_ids:
            new = new[1:]  # the answer already contains it
        context = tuple(new)
        ids = self._ids + context if suffix is not None else context
        return Prompt(ids, context, extends, opened_thought(text))

    def text_of(self, sampled_ids: Sequence[int]) -> str:
        """An answer as text, without its stop token."""
        return self._tokenizer.text_of(sampled_ids)

    def add(self, turn: Turn) -> None:
        """Append an answer and its observation."""
        before = self._ids if turn.extends else ()
        self._ids = before + turn.context_ids + turn.sampled_ids
        self._rendered = self._tokenizer.render(self._messages, generate=True)
        self._answer = turn.text
        self._ended = self._tokenizer.has_ended(turn.sampled_ids)
        self._messages += [Message("assistant", turn.text), self._plain("user", turn.observation)]

    def _plain(self, role: str, content: str) -> Message:
        """Special tokens in outside text are split by a space, so that it cannot end its own message."""
        for token in self._special:
            content = content.replace(token, f"{token[:1]} {token[1:]}")
        return Message(role, content)

    def _suffix(self, text: str) -> str | None:
        """The text that the template adds after the last answer. None if it rewrote earlier messages."""
        if not self._ids:
            return None
        for answer in (self._answer, self._answer.rstrip(), self._answer.strip()):
            prefix = self._rendered + answer
            if text.startswith(prefix):
                return text[len(prefix) :]
        return None


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
        prompt = self._prompt
        known: Attributes = {"gen_ai.usage.input_tokens": len(prompt.ids), "gen_ai.request.seed": seed}
        with _span("text_completion", "vllm", self._model, max_tokens, temperature, known) as generation:
            completion = await self._complete(max_tokens, temperature, seed)
            used = Tokens(prompt=len(prompt.ids), generated=len(completion.ids))
            generation.set(_answered(used, completion.finish))
        return Turn(
            context_ids=prompt.context_ids,
            sampled_ids=completion.ids,
            logprobs=completion.logprobs,
            text=self._chat.text_of(completion.ids),
            opened=prompt.opened,
            finish=completion.finish,
            extends=prompt.extends,
        )

    async def _complete(self, max_tokens: int, temperature: float, seed: int) -> Completion:
        """The ids and logprobs are those that the engine sampled. Raises EngineError.

        A fence alone on its line may also open a block, close one of another language, or be a part of a thought.
        Then the generation goes on where it ended.
        """
        whole, stop_ids = Completion((), (), "length"), self._tokenizer.stop_ids
        while len(whole.ids) < max_tokens:
            sampling = Sampling(
                max_tokens=max_tokens - len(whole.ids),
                temperature=temperature,
                seed=zlib.crc32(f"{seed} {len(whole.ids)}".encode()) if whole.ids else seed,
                stop_token_ids=stop_ids,
                stop_strings=self._stop_strings,
            )
            part = await self._engine.complete(
                (*self._prompt.ids, *whole.ids), model=self._model, sampling=sampling
            )
            whole = Completion(whole.ids + part.ids, whole.logprobs + part.logprobs, part.finish)
            at_string = part.finish == "stop" and part.ids and part.ids[-1] not in stop_ids
            if not (at_string and any(stop in self._chat.text_of(part.ids) for stop in self._stop_strings)):
                return whole
            if is_closed(self._prompt.opened + self._chat.text_of(whole.ids)):
                return whole
        return msgspec.structs.replace(whole, finish="length")

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
        with _span("chat", "openai", self._name, max_tokens, temperature, {}) as generation:
            answer = await self._ask(max_tokens, temperature, self._stop_strings)
            used = answer.tokens
            left = max_tokens - used.generated
            if answer.finish == "stop" and extract_code(answer.text) is None and self._stop_strings and left > 0:
                answer = await self._ask(left, temperature, ())
                used += answer.tokens
            generation.set(_answered(used, answer.finish))
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


def _span(
    operation: str, provider: str, model: str, max_tokens: int, temperature: float, more: Attributes
) -> AbstractContextManager[Span]:
    attributes: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": max_tokens,
        "gen_ai.request.temperature": temperature,
    }
    return span(f"{operation} {model}", attributes | more, client=True)


def _answered(used: Tokens, finish: str) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": used.prompt,
        "gen_ai.usage.output_tokens": used.generated,
        "gen_ai.response.finish_reasons": [finish],
    }
