"""A conversation as append-only token ids: the policy reads back exactly the ids it sampled."""

from collections.abc import Sequence

import msgspec

from app.base.values import Turn
from app.engine.tokenizer import ChatTokenizer, Message, opened_thought


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
        ended = bool(sampled_ids) and sampled_ids[-1] in self._tokenizer.stop_ids
        return self._tokenizer.decode(sampled_ids[:-1] if ended else sampled_ids)

    def add(self, turn: Turn) -> None:
        """Append an answer and its observation."""
        before = self._ids if turn.extends else ()
        self._ids = before + turn.context_ids + turn.sampled_ids
        self._rendered = self._tokenizer.render(self._messages, generate=True)
        self._answer = turn.text
        self._ended = bool(turn.sampled_ids) and turn.sampled_ids[-1] in self._tokenizer.stop_ids
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
